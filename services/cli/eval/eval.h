#pragma once

#include <ostream>

namespace lynx::cli {

// `lynx eval --model DIR --batch 8,16 --policies all|LIST ...`: what routing policies save and what
// they cost, measured by true batched decode of texts and tasks. argv[0] is "eval". Prints tables
// to `out`, progress and errors to `err`; --json and --svg name files to write.
//
// Returns the exit status: 0, 1 (could not run) or 2 (bad arguments).
int RunEval(int argc, const char* const* argv, std::ostream& out, std::ostream& err);

}  // namespace lynx::cli
