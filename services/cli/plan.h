#pragma once

#include <ostream>

namespace lynx::cli {

// `lynx plan --policy P --k K --logits FILE.npy ...`: what a policy does to one step's router
// logits, [rows, experts] in float32. argv[0] is "plan". Prints the plan as JSON to `out`:
//   {"active": [..], "rows": [{"ids": [..], "weights": [..]}, ..], "exact_active": n,
//    "kept_mass": [..]}
// with null for padding rows; errors go to `err`.
//
// Returns the exit status: 0, 1 (the logits cannot be read or ranked) or 2 (bad arguments).
int RunPlan(int argc, const char* const* argv, std::ostream& out, std::ostream& err);

}  // namespace lynx::cli
