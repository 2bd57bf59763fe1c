#pragma once

#include <ostream>

namespace lynx::cli {

// `lynx bench memory`: how fast the node's threads read memory that no cache holds. Arguments,
// output and exit status as RunBench (bench.h).
int RunMemoryBench(int argc, const char* const* argv, std::ostream& out, std::ostream& err);

}  // namespace lynx::cli
