#pragma once

#include <cstdint>

#include "kernels/gemm/packed_matrix.h"

namespace lynx::kernels {

// A linear layer:
//
//   y[r, o] = (accumulate ? y[r, o] : 0) + sum over i of x[r, i] * w[o, i]
//
// with the sum in float32. The caller has rounded x to the precision it computes in.
struct GemmArgs {
  const float* x = nullptr;  // [rows, in], rows x_stride elements apart
  Matrix w = {};             // [out, in]
  float* y = nullptr;        // [rows, out], rows y_stride elements apart
  int64_t rows = 0;          // [0, 2^31); 0 is a no-op
  int64_t in = 0;            // > 0
  int64_t out = 0;           // > 0, < 2^28
  int64_t x_stride = 0;      // >= in
  int64_t y_stride = 0;      // >= out
  bool accumulate = false;
};

}  // namespace lynx::kernels
