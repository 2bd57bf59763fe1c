#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <span>

#include "absl/time/time.h"
#include "common/base/dtype.h"
#include "common/base/step_time.h"
#include "services/router/membership/node_table.h"

namespace lynx::router {

// What a policy may look at when it places one sequence.
struct PlacementRequest {
  int64_t prompt_tokens = 0;
  std::span<const TokenId> prompt = {};  // Of all tokens, for who looks at them.
  int32_t blocks_now = 0;                // KV blocks decode must have free to take the hand-off.
  // What is left of the time to the first token, and the time per further token, that the sequence
  // is to keep; infinite: no limit.
  absl::Duration ttft_left = absl::InfiniteDuration();
  absl::Duration tpot_limit = absl::InfiniteDuration();
  // As sequences went lately: the length of answers, and how long a token of a prompt kept decode
  // waiting for its KV.
  double answer_tokens = 64;
  absl::Duration transfer_per_token = absl::ZeroDuration();
  bool local_only = false;  // No prefill node can take it: its decode node computes the prompt.
};

// One node that may take the sequence: ready, compatible, large enough, not excluded.
struct DecodeCandidate {
  NodeId node = 0;
  int64_t free_blocks = 0;  // As reported, less what this router has been promised since.
  int64_t load = 0;         // Sequences running, waiting and on their way there.
  StepTime step_time = {};
  int64_t held_tokens = 0;  // Of the prompt, from its start; as far as is known.
  // If it computes prompts: rows of one in a step, and prompt tokens waiting there.
  int32_t prompt_rows = 0;
  int64_t queued_tokens = 0;
  bool remaps = false;  // Sequences that do not say otherwise.
  // Of the free blocks, the most that one sequence can have, as reported.
  int64_t most_blocks = std::numeric_limits<int64_t>::max();
};
struct PrefillCandidate {
  NodeId node = 0;
  int64_t queued_tokens = 0;  // Prompt tokens waiting there, those on their way included.
  StepTime step_time = {};
  int64_t held_tokens = 0;  // As above.
};

// Chooses nodes. Pure: depends on its arguments, its own earlier choices and its seed; no I/O, no
// clock. Routers do not talk to each other: each acts on what the nodes report, and the grant of a
// decode node is what counts in the end.
class PlacementPolicy {
 public:
  virtual ~PlacementPolicy() = default;
  // Nothing: no candidate should take it now; the sequence waits.
  virtual std::optional<NodeId> PickDecode(std::span<const DecodeCandidate> candidates,
                                           const PlacementRequest& request) = 0;
  // `candidates` is not empty. A prefill node queues by itself, so one is always chosen.
  virtual NodeId PickPrefill(std::span<const PrefillCandidate> candidates,
                             const PlacementRequest& request) = 0;
  // Whether a prompt is computed on its decode node where that costs less (local_prefill.h); else
  // only where no prefill node can take it.
  virtual bool weighs_local_prefill() const { return true; }
  // Whether it looks at held_tokens.
  virtual bool wants_prefixes() const { return false; }
};

}  // namespace lynx::router
