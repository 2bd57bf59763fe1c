#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace lynx::prefill {

// What one attention replica of a node has to do for a new prompt.
struct ReplicaOffer {
  int64_t queued_tokens = 0;  // Prompt tokens of others that wait there.
  int64_t held_tokens = 0;    // Of the prompt, those whose KV is there already.
  int64_t free_blocks = 0;    // Of its own pool.
};

// Which replica computes a prompt: the one that has the fewest tokens to compute until it is
// through, of equal ones that with the most free blocks, then the first. `offers` is not empty.
size_t ChooseReplica(std::span<const ReplicaOffer> offers);

}  // namespace lynx::prefill
