#pragma once

// For kernel bodies only: the inner loop of every matrix product.

#include "kernels/core/simd.h"

namespace lynx::kernels::LYNX_KERNEL_ISA {

// Columns per tile, and rows per tile at most: what the registers hold.
inline constexpr int kTileColumns = 4;
#if defined(__AVX512F__)
inline constexpr int kTileRows = 4;
#else
inline constexpr int kTileRows = 2;
#endif

// out[r * kTileColumns + c] = x[r] . w[c] for R rows and C columns of length n; rows of w are
// contiguous. One accumulator of sixteen lanes per product, walked from 0 to n: so the bits of a
// product are the same in every tile shape. All loops over a tile are unrolled, which is what keeps
// the accumulators in registers.
template <int R, int C, typename W>
inline void DotTile(const float* const* x, const W* w, int64_t n, float* out) {
  F32x16 sum[R][C];
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 16
    for (int c = 0; c < C; ++c) sum[r][c] = Zero();
  }
  const int64_t whole = n / kLanes * kLanes;
  for (int64_t i = 0; i < whole; i += kLanes) {
    F32x16 columns[C];
#pragma GCC unroll 16
    for (int c = 0; c < C; ++c) columns[c] = Load(w + c * n + i);
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      const F32x16 row = Load(x[r] + i);
#pragma GCC unroll 16
      for (int c = 0; c < C; ++c) sum[r][c] = MulAdd(row, columns[c], sum[r][c]);
    }
  }
  if (const int64_t tail = n - whole; tail > 0) {
    F32x16 columns[C];
#pragma GCC unroll 16
    for (int c = 0; c < C; ++c) columns[c] = LoadPartial(w + c * n + whole, tail);
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      const F32x16 row = LoadPartial(x[r] + whole, tail);
#pragma GCC unroll 16
      for (int c = 0; c < C; ++c) sum[r][c] = MulAdd(row, columns[c], sum[r][c]);
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
    float* to = out + r * kTileColumns;
    if constexpr (C == 4) {
      ReduceAdd4(sum[r][0], sum[r][1], sum[r][2], sum[r][3], to);
    } else {
      for (int c = 0; c < C; ++c) to[c] = ReduceAdd(sum[r][c]);
    }
  }
}

template <int C, typename W>
inline void DotTileRows(const float* const* x, int rows, const W* w, int64_t n, float* out) {
  if (rows == 1) return DotTile<1, C>(x, w, n, out);
  if (rows == 2) return DotTile<2, C>(x, w, n, out);
  if constexpr (kTileRows >= 3) {
    if (rows == 3) return DotTile<3, C>(x, w, n, out);
    return DotTile<4, C>(x, w, n, out);
  }
}

// As DotTile for rows in [1, kTileRows] and columns in [1, kTileColumns].
template <typename W>
inline void DotTileAny(const float* const* x, int rows, const W* w, int columns, int64_t n,
                       float* out) {
  static_assert(kTileColumns == 4);
  if (columns == 4) return DotTileRows<4>(x, rows, w, n, out);
  for (int c = 0; c < columns; ++c) DotTileRows<1>(x, rows, w + c * n, n, out + c);
}

}  // namespace lynx::kernels::LYNX_KERNEL_ISA
