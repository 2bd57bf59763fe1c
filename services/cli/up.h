#pragma once

namespace lynx::cli {

// `lynx up`: a cluster on this machine. Returns the exit status of the program.
int RunUp(int argc, const char* const* argv);

}  // namespace lynx::cli
