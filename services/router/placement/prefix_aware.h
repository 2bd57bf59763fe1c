#pragma once

#include "services/router/placement/placement_policy.h"

namespace lynx::router {

// Places where prompts that begin alike went, unless waiting there costs more than computing or
// sending the beginning again elsewhere; all in seconds, by what the nodes and the sequences so far
// have shown.
//
// Prefill: where the first token is predicted to come first, after what is queued there and what
// of the prompt the node does not hold. Decode: an answer of the usual length takes its steps, and
// what is not held has to come, or to be computed where no prefill node is; of nodes that are about
// as good, the one that holds the most.
//
// A node that has not said what its steps cost is taken to be fast, so that it gets work and can.
class PrefixAware final : public PlacementPolicy {
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
