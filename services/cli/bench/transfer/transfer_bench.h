#pragma once

#include <ostream>

namespace lynx::cli {

// `lynx bench transfer`: what a hand-off of KV between two processes reaches, and what overlapping
// it with compute hides of it (docs/benchmarks.md). Returns the exit status.
int RunTransferBench(int argc, const char* const* argv, std::ostream& out, std::ostream& err);

}  // namespace lynx::cli
