#include "services/router/placement/random_choice.h"

#include <vector>

#include "common/base/check.h"

namespace lynx::router {

std::optional<NodeId> RandomChoice::PickDecode(std::span<const DecodeCandidate> candidates,
                                               const PlacementRequest& request) {
  std::vector<NodeId> roomy;
  for (const DecodeCandidate& c : candidates) {
    if (c.free_blocks >= request.blocks_now) roomy.push_back(c.node);
  }
  if (roomy.empty()) return std::nullopt;
  return roomy[random_() % roomy.size()];
}

NodeId RandomChoice::PickPrefill(std::span<const PrefillCandidate> candidates,
                                 const PlacementRequest&) {
  LYNX_CHECK_MSG(!candidates.empty(), "no prefill candidate to choose from");
  return candidates[random_() % candidates.size()].node;
}

}  // namespace lynx::router
