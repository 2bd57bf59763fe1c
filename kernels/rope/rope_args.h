#pragma once

#include <cstdint>

namespace lynx::kernels {

// Rotary position embedding, half-split pairing, in place. With h = rotary_dim / 2, for j < h and
// angle a = positions[r] * inv_freq[j]:
//
//   x[r, head, j]     = x[r, head, j] * cos a - x[r, head, j + h] * sin a
//   x[r, head, j + h] = x[r, head, j + h] * cos a + x[r, head, j] * sin a
//
// A part of each head is rotated by where x points, rotary_dim and head_stride; the rest is left
// alone.
struct RopeArgs {
  float* x = nullptr;                  // [rows, heads, rotary_dim] at the strides below
  const int32_t* positions = nullptr;  // [rows], each in [0, table_positions)
  const float* cosines = nullptr;      // [table_positions, rotary_dim / 2]
  const float* sines = nullptr;        // [table_positions, rotary_dim / 2]
  int64_t rows = 0;                    // >= 0; 0 is a no-op
  int64_t heads = 0;                   // > 0
  int64_t rotary_dim = 0;              // > 0, even
  int64_t head_stride = 0;             // >= rotary_dim; elements between heads
  int64_t x_stride = 0;                // >= (heads - 1) * head_stride + rotary_dim
  int64_t table_positions = 0;         // > 0
};

}  // namespace lynx::kernels
