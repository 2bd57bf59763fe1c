#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "common/base/dtype.h"
#include "services/router/membership/node_table.h"

namespace lynx::router {

// What a policy may look at when it places one sequence.
struct PlacementRequest {
  std::span<const TokenId> prompt = {};
  int32_t blocks_now = 0;  // KV blocks decode must have free to take the hand-off.
};

// One node that may take the sequence: ready, compatible, large enough, not excluded.
struct DecodeCandidate {
  NodeId node = 0;
  int64_t free_blocks = 0;  // As reported, less what this router has been promised since.
  int64_t load = 0;         // Sequences running, waiting and on their way there.
};
struct PrefillCandidate {
  NodeId node = 0;
  int64_t queued_tokens = 0;  // Prompt tokens waiting there, those on their way included.
};

// Chooses nodes. Pure: depends on its arguments and its own earlier choices only; no I/O, no time.
class PlacementPolicy {
 public:
  virtual ~PlacementPolicy() = default;
  // Nothing: no candidate has room now; the sequence waits.
  virtual std::optional<NodeId> PickDecode(std::span<const DecodeCandidate> candidates,
                                           const PlacementRequest& request) = 0;
  // `candidates` is not empty. A prefill node queues by itself, so one is always chosen.
  virtual NodeId PickPrefill(std::span<const PrefillCandidate> candidates,
                             const PlacementRequest& request) = 0;
};

}  // namespace lynx::router
