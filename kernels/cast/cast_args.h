#pragma once

#include <cstdint>

#include "common/base/dtype.h"

namespace lynx::kernels {

// Copies heads to other places, in another type:
//
//   y[r, h, d] = d < width ? round(x[r, h, d]) : 0, d < y_width
//
// so that each head of y may be a row of activations of a Gemm, which ends in zeros.
struct CastArgs {
  const float* x = nullptr;     // [rows, heads, width]
  void* y = nullptr;            // [rows, heads, y_width] of y_dtype
  int64_t rows = 0;             // >= 0; 0 is a no-op
  int64_t heads = 0;            // > 0
  int64_t width = 0;            // > 0
  int64_t y_width = 0;          // >= width
  int64_t x_head_stride = 0;    // >= width; elements between heads
  int64_t x_stride = 0;         // >= (heads - 1) * x_head_stride + width; between rows
  int64_t y_head_stride = 0;    // >= y_width
  int64_t y_stride = 0;         // >= (heads - 1) * y_head_stride + y_width
  DType y_dtype = DType::kF32;  // kF32 or kBf16
};

}  // namespace lynx::kernels
