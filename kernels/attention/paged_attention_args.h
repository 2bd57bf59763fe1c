#pragma once

#include <cstddef>
#include <cstdint>

#include "common/base/dtype.h"

namespace lynx::kernels {

inline constexpr int32_t kAttentionBlockTokens = 16;
inline constexpr int64_t kMaxHeadDim = 256;

// One query row: a token of some sequence, with the blocks that hold the sequence's KV.
struct AttentionRow {
  const int32_t* blocks = nullptr;  // Token t lies in block blocks[t / 16], slot t % 16.
  int32_t position = 0;             // >= first; attends to tokens [first, position].
  int32_t first = 0;                // >= 0
};

// Causal grouped-query attention of one layer over a paged KV cache:
//
//   y[r, h] = sum over first <= t <= position of softmax_t(scale * q[r, h] . K[t, g]) * V[t, g],
//   g = h / (heads / kv_heads)
//
// With sinks, the softmax is over those tokens and one more of score sinks[h] that has no value.
//
// Blocks that lie before `first` are not touched: they may be of anybody's. Of the block it lies
// in, V must be numbers before it, too.
//
// A block of the cache is [K|V][kv_heads][16][head_dim]. Rows of any sequences in any mix; those of
// one sequence share the work when they are adjacent and name the same `blocks`.
struct PagedAttentionArgs {
  const float* q = nullptr;            // [rows, heads, head_dim], rows q_stride elements apart
  const AttentionRow* rows = nullptr;  // [row_count]
  const std::byte* kv = nullptr;       // Block b begins at kv + b * block_stride_bytes.
  void* y = nullptr;                   // [rows, heads, head_dim] of compute_dtype
  int64_t row_count = 0;               // >= 0; 0 is a no-op
  int64_t heads = 0;                   // > 0, a multiple of kv_heads
  int64_t kv_heads = 0;                // > 0
  int64_t head_dim = 0;                // (0, kMaxHeadDim]
  int64_t q_stride = 0;                // >= heads * head_dim
  int64_t y_stride = 0;                // >= heads * head_dim, elements between rows of y
  int64_t block_stride_bytes = 0;      // > 0
  DType kv_dtype = DType::kBf16;       // kF32 or kBf16
  DType compute_dtype = DType::kF32;   // kF32 or kBf16
  float scale = 1.0f;
  const float* sinks = nullptr;  // [heads], or null: none
};

}  // namespace lynx::kernels
