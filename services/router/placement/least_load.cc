#include "services/router/placement/least_load.h"

#include <utility>
#include <vector>

#include "common/base/check.h"
#include "services/router/placement/lowest.h"

namespace lynx::router {

std::optional<NodeId> LeastLoad::PickDecode(std::span<const DecodeCandidate> candidates,
                                            const PlacementRequest& request) {
  const std::vector<DecodeCandidate> roomy = WithRoom(candidates, request);
  const DecodeCandidate* best =
      Lowest(std::span<const DecodeCandidate>(roomy), last_decode_,
             [](const DecodeCandidate& c) { return std::make_pair(c.load, -c.free_blocks); });
  if (best == nullptr) return std::nullopt;
  return last_decode_ = best->node;
}

NodeId LeastLoad::PickPrefill(std::span<const PrefillCandidate> candidates,
                              const PlacementRequest&) {
  const PrefillCandidate* best =
      Lowest(candidates, last_prefill_, [](const PrefillCandidate& c) { return c.queued_tokens; });
  LYNX_CHECK_MSG(best != nullptr, "no prefill candidate to choose from");
  return last_prefill_ = best->node;
}

}  // namespace lynx::router
