#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/check.h"
#include "common/base/huge_buffer.h"
#include "common/kv/block_pool.h"
#include "common/kv/kv_layout.h"

namespace lynx::kv {

// Memory that the host cannot touch, as that of a GPU: what it holds is copied. Any thread may
// call.
class RemoteMemory {
 public:
  struct Piece {
    std::byte* at = nullptr;
    size_t bytes = 0;
  };
  virtual ~RemoteMemory() = default;
  virtual std::byte* data() = 0;  // An address of its owner.
  // Copy pieces to, or from, bytes of the host that follow one another; return when that is done.
  // Nobody writes what is read meanwhile, or uses what is written.
  //   Internal  and whatever its owner says: it is to be given up.
  virtual absl::Status Read(std::span<const Piece> from, std::byte* to) = 0;
  virtual absl::Status Write(const std::byte* from, std::span<const Piece> to) = 0;
};

// The memory behind a BlockPool, of the host or remote: `blocks` blocks of one KvLayout, zero at
// start; those of one layer of a group lie together, whichever group holds them.
//
// Does no bookkeeping: whoever holds the lease of a block may use its bytes. Distinct blocks may be
// used from distinct threads. Pages are touched on first use.
class KvArena {
 public:
  // ResourceExhausted when the memory cannot be mapped.
  static absl::StatusOr<std::unique_ptr<KvArena>> Create(const KvLayout& layout, int32_t blocks);
  // The same in the remote memory that `make` makes, of that many bytes, which are zero. Fails as
  // it does.
  using MakeMemory = std::function<absl::StatusOr<std::unique_ptr<RemoteMemory>>(size_t bytes)>;
  static absl::StatusOr<std::unique_ptr<KvArena>> CreateRemote(const KvLayout& layout,
                                                               int32_t blocks,
                                                               const MakeMemory& make);
  KvArena(const KvArena&) = delete;
  KvArena& operator=(const KvArena&) = delete;

  // One block in one layer, as layout().kind says; layout().BlockLayerBytes() long, 64-byte
  // aligned. Not of remote memory.
  std::byte* BlockLayer(int32_t layer, BlockId block) {
    LYNX_CHECK(!remote());
    return At(layer, block);
  }
  std::span<std::byte> BlockLayerSpan(int32_t layer, BlockId block) {
    return {BlockLayer(layer, block), static_cast<size_t>(layout_.BlockLayerBytes())};
  }
  // Part of a block in one layer.
  struct Part {
    int32_t layer = 0;
    BlockId block = kNoBlock;
    int64_t offset = 0;
    int64_t bytes = 0;
  };
  Part WholeBlock(int32_t layer, BlockId block) const {
    return {.layer = layer, .block = block, .offset = 0, .bytes = layout_.BlockLayerBytes()};
  }
  // Copy parts, wherever they are, to or from bytes that follow one another: many at once cost less
  // than one by one. Fail as RemoteMemory, and without it never.
  absl::Status Read(std::span<const Part> from, std::byte* to);
  absl::Status Write(const std::byte* from, std::span<const Part> to);
  bool remote() const { return remote_ != nullptr; }
  // Start of one layer, for kernels that run where it is; block b of it begins at
  // b * block_stride_bytes().
  std::byte* Layer(int32_t layer) { return At(layer, 0); }
  int64_t block_stride_bytes() const { return stride_; }

  const KvLayout& layout() const { return layout_; }
  int32_t blocks() const { return blocks_; }

 private:
  KvArena(const KvLayout& layout, int32_t blocks, HugeBuffer memory,
          std::unique_ptr<RemoteMemory> remote);
  std::vector<RemoteMemory::Piece> PiecesOf(std::span<const Part> parts);
  std::byte* At(int32_t layer, BlockId block) {
    return data_ + (int64_t{layout_.groups.slot_of(layer)} * blocks_ + block) * stride_;
  }

  const KvLayout layout_;
  const int32_t blocks_;
  const int64_t stride_;
  const HugeBuffer memory_;                     // One of both;
  const std::unique_ptr<RemoteMemory> remote_;  // the other is empty.
  std::byte* const data_;
};

}  // namespace lynx::kv
