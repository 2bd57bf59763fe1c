#include "services/router/placement/slo_aware.h"

#include <tuple>
#include <vector>

#include "services/router/placement/lowest.h"
#include "services/router/placement/predicted_time.h"

namespace lynx::router {
std::optional<NodeId> SloAware::PickDecode(std::span<const DecodeCandidate> candidates,
                                           const PlacementRequest& request) {
  const std::vector<DecodeCandidate> roomy = WithRoom(candidates, request);
  const DecodeCandidate* best =
      Lowest(std::span<const DecodeCandidate>(roomy), last_decode_, [](const DecodeCandidate& c) {
        return std::make_tuple(TokenTime(c), c.load, -c.free_blocks);
      });
  if (best == nullptr) return std::nullopt;
  if (TokenTime(*best) > request.tpot_limit && request.ttft_left > absl::ZeroDuration()) {
    return std::nullopt;
  }
  return last_decode_ = best->node;
}

NodeId SloAware::PickPrefill(std::span<const PrefillCandidate> candidates,
                             const PlacementRequest& request) {
  return last_prefill_ = EarliestFirstToken(candidates, last_prefill_, request);
}

}  // namespace lynx::router
