#pragma once

namespace lynx::cli {

// `lynx chat`: talks to any OpenAI-style server, streaming. Returns the exit status of the program.
int RunChat(int argc, const char* const* argv);

}  // namespace lynx::cli
