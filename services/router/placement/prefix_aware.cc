#include "services/router/placement/prefix_aware.h"

#include <algorithm>
#include <tuple>
#include <vector>

#include "services/router/placement/lowest.h"
#include "services/router/placement/predicted_time.h"

namespace lynx::router {
namespace {

// Predictions of times are not better than this.
constexpr double kAboutAsGood = 1.05;

}  // namespace

std::optional<NodeId> PrefixAware::PickDecode(std::span<const DecodeCandidate> candidates,
                                              const PlacementRequest& request) {
  const std::vector<DecodeCandidate> roomy = WithRoom(candidates, request);
  if (roomy.empty()) return std::nullopt;
  absl::Duration least = absl::InfiniteDuration();
  for (const DecodeCandidate& c : roomy) least = std::min(least, AnswerTime(c, request));
  std::vector<DecodeCandidate> good;
  for (const DecodeCandidate& c : roomy) {
    if (AnswerTime(c, request) <= least * kAboutAsGood) good.push_back(c);
  }
  const DecodeCandidate* best =
      Lowest(std::span<const DecodeCandidate>(good), last_decode_, [](const DecodeCandidate& c) {
        return std::make_tuple(-c.held_tokens, c.load, -c.free_blocks);
      });
  return last_decode_ = best->node;
}

NodeId PrefixAware::PickPrefill(std::span<const PrefillCandidate> candidates,
                                const PlacementRequest& request) {
  return last_prefill_ = EarliestFirstToken(candidates, last_prefill_, request);
}

}  // namespace lynx::router
