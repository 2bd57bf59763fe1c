#pragma once

#include <cstddef>
#include <cstdint>

namespace lynx::kernels {

// Sizes and places of what is copied are multiples of this many bytes: so is a head of a block.
inline constexpr int64_t kKvCopyUnit = 16;
inline constexpr int kMaxKvPieces = 2;

// Bytes of one block in one layer.
struct KvPiece {
  int64_t offset = 0;  // >= 0
  int64_t bytes = 0;   // > 0
};

// What a hand-off moves of some blocks of one layer: the same pieces of each, as of some heads
// their keys and their values. Packed they lie back to back, in order, block after block.
struct KvCopyArgs {
  std::byte* kv = nullptr;            // Block b begins at kv + b * block_stride_bytes.
  std::byte* packed = nullptr;        // [block_count, the pieces' bytes]; does not overlap kv
  const int32_t* blocks = nullptr;    // [block_count], each >= 0
  int64_t block_count = 0;            // [0, 2^31); 0 is a no-op
  int64_t block_stride_bytes = 0;     // < 2^31, >= the end of each piece
  KvPiece pieces[kMaxKvPieces] = {};  // Do not overlap.
  int piece_count = 0;                // [1, kMaxKvPieces]

  int64_t PackedBlockBytes() const {
    int64_t bytes = 0;
    for (int i = 0; i < piece_count; ++i) bytes += pieces[i].bytes;
    return bytes;
  }
};

}  // namespace lynx::kernels
