#pragma once

#include <ostream>

namespace lynx::cli {

// `lynx inspect`: what a model is and takes, before anything is loaded. Returns the exit status: 0;
// 1 with problems in the model, or where it does not fit; 2 for wrong arguments.
int RunInspect(int argc, const char* const* argv, std::ostream& out, std::ostream& err);

}  // namespace lynx::cli
