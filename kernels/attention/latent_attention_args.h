#pragma once

#include <cstddef>
#include <cstdint>

#include "common/base/dtype.h"
#include "kernels/attention/paged_attention_args.h"

namespace lynx::kernels {

inline constexpr int64_t kMaxLatentDim = 768;
inline constexpr int64_t kMaxLatentRopeDim = 128;

// Causal multi-head latent attention of one layer in its absorbed form, over a paged cache. Of each
// token the cache has one latent c and one rotated key p, which all heads share:
//
//   s[r, h, t] = scale * (q[r, h, 0 : latent_dim] . c[t] + q[r, h, latent_dim :] . p[t])
//   y[r, h] = sum over t <= position of softmax_t(s[r, h, t]) * c[t]
//
// A block of the cache is [16][latent_dim + rope_dim], c before p. Rows as for PagedAttentionArgs.
struct LatentAttentionArgs {
  const float* q = nullptr;            // [rows, heads, latent_dim + rope_dim]
  const AttentionRow* rows = nullptr;  // [row_count]
  const std::byte* kv = nullptr;       // Block b begins at kv + b * block_stride_bytes.
  void* y = nullptr;                   // [rows, heads, latent_dim] of compute_dtype
  int64_t row_count = 0;               // >= 0; 0 is a no-op
  int64_t heads = 0;                   // > 0
  int64_t latent_dim = 0;              // (0, kMaxLatentDim]
  int64_t rope_dim = 0;                // [0, kMaxLatentRopeDim]
  int64_t q_stride = 0;                // >= heads * (latent_dim + rope_dim), between rows of q
  int64_t y_head_stride = 0;           // >= latent_dim; elements between heads of a row of y
  int64_t y_stride = 0;                // >= (heads - 1) * y_head_stride + latent_dim, between rows
  int64_t block_stride_bytes = 0;      // > 0
  DType kv_dtype = DType::kBf16;       // kF32 or kBf16
  DType compute_dtype = DType::kF32;   // kF32 or kBf16
  float scale = 1.0f;
};

}  // namespace lynx::kernels
