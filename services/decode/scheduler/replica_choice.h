#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

namespace lynx::decode {

// What one attention replica of a node could do for a new sequence. Blocks are of its own pool.
struct ReplicaOffer {
  int64_t free_blocks = 0;   // Less what its running sequences may need soon.
  int64_t taken_blocks = 0;  // No more free once the sequence has its grant.
  int64_t held_blocks = 0;   // Of the prompt, those whose KV is there already.
  int32_t sequences = 0;     // Granted and running there.

  bool has_room() const { return taken_blocks <= free_blocks; }
};

// Which replica takes the sequence, for its life: of those with room the one that has the most
// blocks free afterwards, or the one that holds a prefix of the prompt, where that is more blocks
// than the other has free on top. Equal ones: that with the fewest sequences, then the first.
// Nothing: none has room.
std::optional<size_t> ChooseReplica(std::span<const ReplicaOffer> offers);

}  // namespace lynx::decode
