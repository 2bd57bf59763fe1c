#include "services/router/placement/random_choice.h"

#include <vector>

#include "common/base/check.h"
#include "services/router/placement/lowest.h"

namespace lynx::router {

std::optional<NodeId> RandomChoice::PickDecode(std::span<const DecodeCandidate> candidates,
                                               const PlacementRequest& request) {
  const std::vector<DecodeCandidate> roomy = WithRoom(candidates, request);
  if (roomy.empty()) return std::nullopt;
  return roomy[random_() % roomy.size()].node;
}

NodeId RandomChoice::PickPrefill(std::span<const PrefillCandidate> candidates,
                                 const PlacementRequest&) {
  LYNX_CHECK_MSG(!candidates.empty(), "no prefill candidate to choose from");
  return candidates[random_() % candidates.size()].node;
}

}  // namespace lynx::router
