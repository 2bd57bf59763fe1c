#pragma once

#include <ostream>

namespace lynx::cli {

// `lynx bench decode|prefill (--model DIR | --shape NAME) ...`: how fast one node's engine runs on
// this machine, and how near to its limits. Arguments, output and exit status as RunBench
// (bench.h).
int RunModelBench(int argc, const char* const* argv, std::ostream& out, std::ostream& err);

}  // namespace lynx::cli
