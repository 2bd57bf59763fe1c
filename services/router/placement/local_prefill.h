#pragma once

#include "services/router/placement/placement_policy.h"

namespace lynx::router {

// Whether it costs less that a decode node computes a prompt itself than that `prefill` does and
// sends the KV. The cost is the time to the first token, the KV's way included, and the prompt's
// rows for each sequence of the decode node that waits for them meanwhile: for one at least, as a
// node does not stay empty; its `load` is without this sequence. Never where the batch is full or a
// step would pass the limit on further tokens, beside sequences that are remapped (the rows of a
// prompt read nearly all experts, so that remapping would save nothing), or while one of the nodes
// has not said what its steps cost.
bool CheaperLocally(const DecodeCandidate& decode, const PrefillCandidate& prefill,
                    const PlacementRequest& request);

}  // namespace lynx::router
