#pragma once

#include <ostream>

namespace lynx::cli {

// `lynx bench ranks --shape NAME ...`: decode steps of a node of several ranks, in both forms of
// expert parallelism. Arguments, output and exit status as RunBench (bench.h).
int RunRanksBench(int argc, const char* const* argv, std::ostream& out, std::ostream& err);

}  // namespace lynx::cli
