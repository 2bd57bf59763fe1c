#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <span>

#include "common/base/dtype.h"
#include "services/router/placement/placement_policy.h"

namespace lynx::router {

// Which tokens a prompt is made of, as counts in buckets of hashed ids. Experts go by the token
// more than by its context, so prompts of like tokens are answered by like experts.
using PromptSketch = std::array<float, 1024>;
PromptSketch SketchOf(std::span<const TokenId> prompt);

// Experimental. Sends like prompts to the same decode nodes, so that their batches share experts:
// the fewer distinct experts a step touches, the less it has to read.
//
// Decode: of nodes whose predicted cost is within kMostExcess of the least, and of these with half
// of the free blocks of the one with most, the one whose sequences are most like the prompt. Cost
// over the least, as a share, is taken from likeness, which is 1 at most. A node's sequences are
// known by the mean of their sketches, which follows as they come and go. What all prompts have in
// common is taken off first, or a system prompt would make everything alike.
//
// Nodes are the same to a new router: what each gathers comes of the first prompts, and two routers
// may well gather unlike prompts on one node.
//
// Prefill: where the first token is predicted to come first.
//
// A choice takes the prompt's length and 1024 operations for each candidate near the least cost.
class ExpertAffinity final : public PlacementPolicy {
 public:
  // More of the least predicted cost than this is too much for any likeness.
  static constexpr double kMostExcess = 0.1;

  std::optional<NodeId> PickDecode(std::span<const DecodeCandidate> candidates,
                                   const PlacementRequest& request) override;
  NodeId PickPrefill(std::span<const PrefillCandidate> candidates,
                     const PlacementRequest& request) override;
  bool wants_prefixes() const override { return true; }

 private:
  // In [-1, 1]; 0 for a node that has had none.
  double Likeness(const PromptSketch& sketch, NodeId node) const;
  void Placed(const PromptSketch& sketch, const DecodeCandidate& node);

  std::map<NodeId, PromptSketch> means_;  // Of the sequences there.
  PromptSketch common_ = {};              // Of all prompts, the recent ones counting most.
  int64_t prompts_ = 0;
  NodeId last_decode_ = 0;
  NodeId last_prefill_ = 0;
};

}  // namespace lynx::router
