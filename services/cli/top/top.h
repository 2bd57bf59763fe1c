#pragma once

#include <ostream>

namespace lynx::cli {

// `lynx top`: what a router's cluster does now, again and again. Returns the exit status: 0, 1 when
// --once found no router, 2 for bad arguments.
int RunTop(int argc, const char* const* argv, std::ostream& out, std::ostream& err);

}  // namespace lynx::cli
