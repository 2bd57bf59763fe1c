#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/time/time.h"
#include "common/base/step_time.h"

namespace lynx::prefill {

// What the order of turns looks at, of one prompt.
struct Turn {
  int64_t arrival = 0;    // Order of arrival; unlike any other's.
  int32_t priority = 0;   // Lower goes first.
  double place = 0;       // Of its tenant: who stands further back, at less, goes first.
  int32_t rows_left = 0;  // > 0: still to compute.
  absl::Time deadline = absl::InfiniteFuture();
};

// In which order prompts take their share of the next step, as indices into `turns`: of the lower
// priority first, and of one priority
//   1. those whose deadline would pass if they waited much longer, the earliest deadline first;
//   2. those of the tenant that has had least, and of one tenant the shortest first by what is left
//      of them, so that a short prompt does not wait for long ones; among equals the older one;
//   3. those that cannot meet their deadline any more even if they ran alone, in order of arrival:
//      what they take is better given to the others.
// Deadlines count once the node knows what its steps take.
std::vector<size_t> TurnOrder(std::span<const Turn> turns, const StepTime& step_time,
                              absl::Time now);

}  // namespace lynx::prefill
