#pragma once

#include <ostream>

namespace lynx::cli {

// `lynx bench router`: what streaming costs the router, by the real router process between stub
// nodes and clients, beside a bare echo (docs/benchmarks.md). Returns the exit status.
int RunRouterBench(int argc, const char* const* argv, std::ostream& out, std::ostream& err);

}  // namespace lynx::cli
