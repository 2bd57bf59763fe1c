#include "services/router/placement/round_robin.h"

#include "common/base/check.h"
#include "services/router/placement/lowest.h"

namespace lynx::router {

std::optional<NodeId> RoundRobin::PickDecode(std::span<const DecodeCandidate> candidates,
                                             const PlacementRequest& request) {
  const std::vector<DecodeCandidate> roomy = WithRoom(candidates, request);
  const DecodeCandidate* next = Lowest(std::span<const DecodeCandidate>(roomy), last_decode_,
                                       [](const DecodeCandidate&) { return 0; });
  if (next == nullptr) return std::nullopt;
  return last_decode_ = next->node;
}

NodeId RoundRobin::PickPrefill(std::span<const PrefillCandidate> candidates,
                               const PlacementRequest&) {
  const PrefillCandidate* next =
      Lowest(candidates, last_prefill_, [](const PrefillCandidate&) { return 0; });
  LYNX_CHECK_MSG(next != nullptr, "no prefill candidate to choose from");
  return last_prefill_ = next->node;
}

}  // namespace lynx::router
