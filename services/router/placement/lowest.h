#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <tuple>
#include <vector>

#include "services/router/membership/node_table.h"
#include "services/router/placement/placement_policy.h"

namespace lynx::router {

// The candidate of lowest cost, and among equals the one whose turn it is: the first id above
// `last`, or else the lowest. Ids, not indices, so that turns survive nodes coming and going.
// Null: there is none.
template <typename Candidate, typename Cost>
const Candidate* Lowest(std::span<const Candidate> candidates, NodeId last, Cost cost) {
  const auto rank = [&](const Candidate& c) {
    return std::make_tuple(cost(c), c.node <= last, c.node);
  };
  const Candidate* best = nullptr;
  for (const Candidate& c : candidates) {
    if (best == nullptr || rank(c) < rank(*best)) best = &c;
  }
  return best;
}

// Those that can take the hand-off now.
inline std::vector<DecodeCandidate> WithRoom(std::span<const DecodeCandidate> candidates,
                                             const PlacementRequest& request) {
  std::vector<DecodeCandidate> roomy;
  for (const DecodeCandidate& c : candidates) {
    if (std::min(c.free_blocks, c.most_blocks) >= request.blocks_now) roomy.push_back(c);
  }
  return roomy;
}

}  // namespace lynx::router
