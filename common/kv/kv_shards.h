#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "common/kv/block_pool.h"
#include "common/kv/kv_arena.h"
#include "common/kv/kv_layout.h"

namespace lynx::kv {

// The KV of a node, of which the arena of each rank holds some heads; of a single rank all. Blocks
// have the same ids on all ranks. What goes out or comes in is a block with all its heads, as
// layout() says, whatever number of ranks share it: so nodes of different widths exchange KV.
//
// A value: copies mean the same arenas, which outlive them. As an arena does no bookkeeping.
class KvShards {
 public:
  struct Shard {
    KvArena* arena = nullptr;
    int32_t first_head = 0;  // Of all; latents: 0.
  };

  KvShards(KvArena& whole);  // NOLINT: the arena of a single rank is the KV of its node.

  // InvalidArgument: arenas that do not together make up `whole`; heads may be there more than
  // once, and are then alike.
  static absl::StatusOr<KvShards> Create(const KvLayout& whole, std::vector<Shard> shards);

  const KvLayout& layout() const { return layout_; }
  int32_t blocks() const { return shards_[0].arena->blocks(); }

  // Appends the bytes of one block in one layer, in order.
  void Read(int32_t layer, BlockId block, std::vector<std::span<const std::byte>>& parts) const;
  // Stores those from `offset` on, with every rank that has some of them.
  void Write(int32_t layer, BlockId block, int64_t offset, std::span<const std::byte> bytes) const;

 private:
  KvShards(const KvLayout& layout, std::vector<Shard> shards, std::vector<Shard> readers)
      : layout_(layout), shards_(std::move(shards)), readers_(std::move(readers)) {}

  KvLayout layout_;
  std::vector<Shard> shards_;
  std::vector<Shard> readers_;  // In order of heads, each head once.
};

}  // namespace lynx::kv
