#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "absl/status/statusor.h"
#include "common/base/huge_buffer.h"
#include "common/kv/block_pool.h"
#include "common/kv/kv_layout.h"

namespace lynx::kv {

// The host memory behind a BlockPool: `blocks` blocks of one KvLayout, zero at start; those of one
// layer of a group lie together, whichever group holds them.
//
// Does no bookkeeping: whoever holds the lease of a block may use its bytes. Distinct blocks may be
// used from distinct threads. Pages are touched on first use.
class KvArena {
 public:
  // ResourceExhausted when the memory cannot be mapped.
  static absl::StatusOr<std::unique_ptr<KvArena>> Create(const KvLayout& layout, int32_t blocks);
  KvArena(const KvArena&) = delete;
  KvArena& operator=(const KvArena&) = delete;

  // One block in one layer, as layout().kind says; layout().BlockLayerBytes() long, 64-byte
  // aligned.
  std::byte* BlockLayer(int32_t layer, BlockId block) {
    return memory_.data() + (int64_t{layout_.groups.slot_of(layer)} * blocks_ + block) * stride_;
  }
  std::span<std::byte> BlockLayerSpan(int32_t layer, BlockId block) {
    return {BlockLayer(layer, block), static_cast<size_t>(layout_.BlockLayerBytes())};
  }
  // Start of one layer; block b of it begins at b * block_stride_bytes().
  std::byte* Layer(int32_t layer) { return BlockLayer(layer, 0); }
  int64_t block_stride_bytes() const { return stride_; }

  const KvLayout& layout() const { return layout_; }
  int32_t blocks() const { return blocks_; }

 private:
  KvArena(const KvLayout& layout, int32_t blocks, int64_t stride, HugeBuffer memory);

  const KvLayout layout_;
  const int32_t blocks_;
  const int64_t stride_;
  const HugeBuffer memory_;
};

}  // namespace lynx::kv
