#include "services/prefill/scheduler/replica_choice.h"

#include <algorithm>
#include <utility>

#include "common/base/check.h"

namespace lynx::prefill {

size_t ChooseReplica(std::span<const ReplicaOffer> offers) {
  LYNX_CHECK(!offers.empty());
  const auto best = std::ranges::min_element(offers, {}, [](const ReplicaOffer& offer) {
    return std::pair(offer.queued_tokens - offer.held_tokens, -offer.free_blocks);
  });
  return static_cast<size_t>(best - offers.begin());
}

}  // namespace lynx::prefill
