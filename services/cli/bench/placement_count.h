#pragma once

#include <cstdint>

#include "common/moe/policy.h"
#include "services/cli/bench/router_traces.h"

namespace lynx::cli {

// Experts that the rank with most of a layer's has to read in a step, under several placements of
// experts on ranks. Means over replayed steps.
struct PlacementCount {
  // Under exact plans,
  double least = 0;        // if all ranks had as many, within one;
  double even = 0;         // with as many neighbours on each rank;
  double by_tokens = 0;    // placed and copied by how many tokens chose them;
  double split = 0;        // the same, rows taking copies in turn, as who balances tokens has it;
  double by_activity = 0;  // placed and copied by how likely a step of that batch needs them.
  // Under the policy.
  double policy_least = 0;
  double policy_even = 0;
  double policy_by_activity = 0;
  // As served: slots of the start, and as experts have moved from there by the history of steps of
  // that batch under the same plans. The third under the policy with ep_balance.
  double first = 0, served = 0;
  double policy_first = 0, policy_served = 0;
  double balanced_first = 0, balanced_served = 0;
  double choose_us = 0;  // Time to choose among copies, median of the exact steps.
};

// `ep` ranks with `spare` slots each beyond their share of the experts. The first half of the
// traced steps, all sequences, is the history that placements go by; the second half is replayed.
// Rows beyond the traced sequences reach back into the first.
PlacementCount CountPlacements(const RouterTraces& traces, const moe::Policy& policy,
                               int32_t experts, int32_t top_k, int32_t batch, int32_t ep,
                               int32_t spare);

}  // namespace lynx::cli
