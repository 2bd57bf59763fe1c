#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "common/moe/policy.h"

namespace lynx::moe {

// The policies that `auto` moves along: exact, then `lossy_rungs` from `gentlest` to `harshest` in
// equal steps of every parameter in which the two differ (integers rounded to the nearest). Rungs
// that come out equal are one.
//
// Both must be complete and of one kind, and it is the caller's knowledge that they go from gentle
// to harsh: falling coverage, fraction or beta, rising lambda.
//   InvalidArgument  another kind, exact or auto, nothing between them, or a parameter that only
//   one
//                    of them has; names it.
absl::StatusOr<std::vector<Policy>> MakePolicyLadder(const Policy& gentlest, const Policy& harshest,
                                                     int32_t lossy_rungs);

}  // namespace lynx::moe
