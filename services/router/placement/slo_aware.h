#pragma once

#include "services/router/placement/placement_policy.h"

namespace lynx::router {

// Places by predicted times, from what the nodes say of their steps and queues.
//
// Prefill: where the first token is predicted to come first, after what is queued there and what
// of the prompt the node does not hold. Decode: a sequence makes every step of its node longer for
// all that run there, so it goes where the predicted step stays shortest, and nowhere while every
// node would pass the limit on further tokens: it waits for as long as its first token has time.
// Then it is placed all the same, where it does least harm.
//
// A node that has not said what its steps cost is taken to be fast, so that it gets work and can.
class SloAware final : public PlacementPolicy {
 public:
  std::optional<NodeId> PickDecode(std::span<const DecodeCandidate> candidates,
                                   const PlacementRequest& request) override;
  NodeId PickPrefill(std::span<const PrefillCandidate> candidates,
                     const PlacementRequest& request) override;
  bool wants_prefixes() const override { return true; }

 private:
  NodeId last_decode_ = 0;
  NodeId last_prefill_ = 0;
};

}  // namespace lynx::router
