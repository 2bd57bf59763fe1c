#pragma once

#include "kernels/attention/paged_attention_args.h"
#include "kernels/core/device.cuh"

namespace lynx::kernels::device {

inline constexpr int kAttentionThreads = 256;
inline constexpr int kAttentionSplit = 256;  // Tokens: one a thread.
inline constexpr int kAttentionWorkers = 16;

// What both kinds of attention are here: of each token a key, whose first value_dim elements or
// another place of its block are its value.
struct AttentionView {
  const float* q;
  const AttentionRow* rows;
  const std::byte* kv;
  void* y;
  const float* sinks;
  int64_t block_stride_bytes;
  int64_t q_stride, y_stride, y_head_stride;
  int64_t value_offset;  // Elements from the first KV head's keys to its values.
  int64_t head_offset;   // Elements from one KV head to the next.
  int row_count, heads, kv_heads;
  int key_dim, value_dim;
  float scale;
  bool bf16_kv, bf16_y;
  // [row, head, worker]: the weighted sum of values, then the largest score and the weights' sum.
  float* partial;

  __host__ __device__ int PartialStride() const { return value_dim + 2; }
  __device__ float* PartialOf(int64_t row, int head, int worker) const {
    return partial + ((row * heads + head) * kAttentionWorkers + worker) * PartialStride();
  }
};

}  // namespace lynx::kernels::device
