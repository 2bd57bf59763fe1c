#pragma once

#include "services/router/placement/placement_policy.h"

namespace lynx::router {

// Each node in turn, of decode nodes those with room. What a router can do that knows nothing; the
// measure for those that know more.
class RoundRobin final : public PlacementPolicy {
 public:
  std::optional<NodeId> PickDecode(std::span<const DecodeCandidate> candidates,
                                   const PlacementRequest& request) override;
  NodeId PickPrefill(std::span<const PrefillCandidate> candidates,
                     const PlacementRequest& request) override;
  bool weighs_local_prefill() const override { return false; }

 private:
  NodeId last_decode_ = 0;
  NodeId last_prefill_ = 0;
};

}  // namespace lynx::router
