#include "services/decode/scheduler/replica_choice.h"

#include <tuple>

namespace lynx::decode {

std::optional<size_t> ChooseReplica(std::span<const ReplicaOffer> offers) {
  const auto rank = [](const ReplicaOffer& offer) {
    return std::tuple(-(offer.free_blocks - offer.taken_blocks + offer.held_blocks),
                      offer.sequences);
  };
  std::optional<size_t> best;
  for (size_t i = 0; i < offers.size(); ++i) {
    if (!offers[i].has_room()) continue;
    if (!best.has_value() || rank(offers[i]) < rank(offers[*best])) best = i;
  }
  return best;
}

}  // namespace lynx::decode
