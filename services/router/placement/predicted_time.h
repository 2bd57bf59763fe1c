#pragma once

#include <algorithm>
#include <cstdint>

#include "absl/time/time.h"
#include "services/router/placement/placement_policy.h"

// What policies that go by time predict, from what the nodes say of their steps.
namespace lynx::router {

// Rows that a prefill node computes until the prompt's first token, if it goes there now.
inline int64_t RowsBefore(const PrefillCandidate& c, const PlacementRequest& request) {
  return c.queued_tokens + std::max<int64_t>(request.prompt_tokens - c.held_tokens, 1);
}

inline absl::Duration FirstTokenTime(const PrefillCandidate& c, const PlacementRequest& request) {
  return c.step_time.Steps(RowsBefore(c, request));
}

// Per token of each sequence of a decode node once one more is there. Those beyond what a step
// takes wait for turns.
inline absl::Duration TokenTime(const DecodeCandidate& c) {
  const int64_t sequences = c.load + 1;
  const int64_t limit = c.step_time.max_rows;
  if (limit <= 0 || sequences <= limit) return c.step_time.Step(sequences);
  return c.step_time.Step(limit) * sequences / limit;
}

}  // namespace lynx::router
