#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <utility>

#include "absl/time/time.h"
#include "common/base/check.h"
#include "services/router/placement/lowest.h"
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

// Where the first token is predicted to come first; `last` as in Lowest(). `candidates` is not
// empty.
inline NodeId EarliestFirstToken(std::span<const PrefillCandidate> candidates, NodeId last,
                                 const PlacementRequest& request) {
  const PrefillCandidate* best = Lowest(candidates, last, [&](const PrefillCandidate& c) {
    return std::make_pair(FirstTokenTime(c, request), RowsBefore(c, request));
  });
  LYNX_CHECK_MSG(best != nullptr, "no prefill candidate to choose from");
  return best->node;
}

// Per token of each sequence of a decode node once one more is there. Those beyond what a step
// takes wait for turns.
inline absl::Duration TokenTime(const DecodeCandidate& c) {
  const int64_t sequences = c.load + 1;
  const int64_t limit = c.step_time.max_rows;
  if (limit <= 0 || sequences <= limit) return c.step_time.Step(sequences);
  return c.step_time.Step(limit) * sequences / limit;
}

// Until the first token of a prompt that the decode node computes itself: what waits there and the
// rows it does not hold, in chunks beside its other sequences; `load` counts these alone. Infinite:
// it takes no prompts.
inline absl::Duration FirstTokenTime(const DecodeCandidate& c, const PlacementRequest& request) {
  if (c.prompt_rows <= 0) return absl::InfiniteDuration();
  const int64_t rows =
      c.queued_tokens + std::max<int64_t>(request.prompt_tokens - c.held_tokens, 1);
  const int64_t steps = (rows + c.prompt_rows - 1) / c.prompt_rows;
  return c.step_time.base * steps + c.step_time.per_row * (rows + c.load * steps);
}

// A whole answer there, of the usual length, after what of the prompt's KV is not held has come, or
// been computed where no prefill node is.
inline absl::Duration AnswerTime(const DecodeCandidate& c, const PlacementRequest& request) {
  return TokenTime(c) * request.answer_tokens +
         (request.local_only
              ? FirstTokenTime(c, request)
              : request.transfer_per_token * (request.prompt_tokens - c.held_tokens));
}

}  // namespace lynx::router
