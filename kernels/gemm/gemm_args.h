#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/gemm/packed_matrix.h"

namespace lynx::kernels {

// A linear layer:
//
//   y[r, o] = (accumulate ? y[r, o] : 0) + (bias[o] + scale * sum over i of x[r, i] * w[o, i])
//
// in float32. The caller has rounded x to the precision it computes in.
//
// Rows of bf16 x go on with zeros up to a multiple of kPanelDepth. Rows that start at a multiple of
// 64 bytes, and not all at the same offset within a page of 4 KiB, are read fastest.
struct GemmArgs {
  const void* x = nullptr;  // [rows, w.in] of x_dtype, rows x_stride elements apart
  Matrix w = {};
  float* y = nullptr;           // [rows, w.out], rows y_stride elements apart
  int64_t rows = 0;             // [0, 2^31); 0 is a no-op
  int64_t x_stride = 0;         // >= w.in; for bf16 x >= w.in rounded up to kPanelDepth
  int64_t y_stride = 0;         // >= w.out
  DType x_dtype = DType::kF32;  // kF32 or kBf16
  bool accumulate = false;
  float scale = 1;
  const float* bias = nullptr;  // [w.out], or null: none
};

// Several of them.
struct GemmProducts {
  const GemmArgs* products = nullptr;  // [count], on the host
  size_t count = 0;
};

}  // namespace lynx::kernels
