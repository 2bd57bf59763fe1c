#pragma once

#include "services/router/placement/placement_policy.h"

namespace lynx::router {

// Decode: among nodes with room, the least loaded, then the one with most free blocks.
// Prefill: the fewest queued prompt tokens. Equal nodes take turns.
class LeastLoad final : public PlacementPolicy {
 public:
  std::optional<NodeId> PickDecode(std::span<const DecodeCandidate> candidates,
                                   const PlacementRequest& request) override;
  NodeId PickPrefill(std::span<const PrefillCandidate> candidates,
                     const PlacementRequest& request) override;

 private:
  NodeId last_decode_ = 0;
  NodeId last_prefill_ = 0;
};

}  // namespace lynx::router
