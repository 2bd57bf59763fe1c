#pragma once

#include <ostream>

namespace lynx::cli {

// `lynx bench decode|prefill --model DIR ...`: how fast one node's engine runs on this machine, and
// how near to the memory wall. argv[0] is "bench". Prints a table, or JSON with --json, to `out`
// and errors to `err`.
//
// Every sequence, and in decode every step, has its own random tokens: with shared tokens all rows
// would take the same experts, and decode would look far faster than it is.
//
// `lynx bench planner` is bench_planner.h.
//
// Returns the exit status: 0, 1 (could not run) or 2 (bad arguments).
int RunBench(int argc, const char* const* argv, std::ostream& out, std::ostream& err);

}  // namespace lynx::cli
