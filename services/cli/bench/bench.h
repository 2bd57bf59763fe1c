#pragma once

#include <ostream>

namespace lynx::cli {

// `lynx bench memory|decode|prefill|planner ...`: how fast this machine, one node's engine on it,
// and the expert planner are, and how near to the machine's limits. argv[0] is "bench". Prints a
// table, or JSON with --json, to `out` and errors to `err`.
//
// Returns the exit status: 0, 1 (could not run) or 2 (bad arguments).
int RunBench(int argc, const char* const* argv, std::ostream& out, std::ostream& err);

}  // namespace lynx::cli
