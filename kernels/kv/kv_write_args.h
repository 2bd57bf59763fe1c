#pragma once

#include <cstddef>
#include <cstdint>

#include "common/base/dtype.h"

namespace lynx::kernels {

inline constexpr int32_t kKvBlockTokens = 16;

struct KvSlot {
  int32_t block = 0;   // >= 0
  int32_t offset = 0;  // [0, 16): the token's place in the block
};

// Stores K and V of tokens, rounded to the cache's type, into blocks of one layer; a block is
// [K|V][kv_heads][16][head_dim].
struct KvWriteArgs {
  const float* k = nullptr;        // [rows, kv_heads, head_dim], contiguous
  const float* v = nullptr;        // [rows, kv_heads, head_dim], contiguous
  const KvSlot* slots = nullptr;   // [rows], distinct
  std::byte* kv = nullptr;         // Block b begins at kv + b * block_stride_bytes.
  int64_t rows = 0;                // >= 0; 0 is a no-op
  int64_t kv_heads = 0;            // > 0
  int64_t head_dim = 0;            // > 0
  int64_t block_stride_bytes = 0;  // > 0
  DType kv_dtype = DType::kBf16;   // kF32 or kBf16
};

// The same for latents: one row of `width` elements a token, its latent and then its rotated key; a
// block is [16][width].
struct LatentWriteArgs {
  const float* x = nullptr;        // [rows, width], rows x_stride elements apart
  const KvSlot* slots = nullptr;   // [rows], distinct
  std::byte* kv = nullptr;         // Block b begins at kv + b * block_stride_bytes.
  int64_t rows = 0;                // >= 0; 0 is a no-op
  int64_t width = 0;               // > 0
  int64_t x_stride = 0;            // >= width
  int64_t block_stride_bytes = 0;  // > 0
  DType kv_dtype = DType::kBf16;   // kF32 or kBf16
};

}  // namespace lynx::kernels
