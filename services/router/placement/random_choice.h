#pragma once

#include <random>

#include "services/router/placement/placement_policy.h"

namespace lynx::router {

// Any node, of decode nodes any with room.
class RandomChoice final : public PlacementPolicy {
 public:
  explicit RandomChoice(uint64_t seed) : random_(seed) {}

  std::optional<NodeId> PickDecode(std::span<const DecodeCandidate> candidates,
                                   const PlacementRequest& request) override;
  NodeId PickPrefill(std::span<const PrefillCandidate> candidates,
                     const PlacementRequest& request) override;
  bool weighs_local_prefill() const override { return false; }

 private:
  std::mt19937_64 random_;
};

}  // namespace lynx::router
