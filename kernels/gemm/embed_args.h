#pragma once

#include <cstdint>

#include "kernels/gemm/packed_matrix.h"

namespace lynx::kernels {

// Rows of a packed matrix, by number:
//
//   y[r, i] = scale * w[tokens[r] - first, i], and 0 where w has no such row
struct EmbedArgs {
  const int32_t* tokens = nullptr;  // [rows]
  Matrix w = {};
  float* y = nullptr;    // [rows, w.in], rows y_stride elements apart
  int64_t rows = 0;      // [0, 2^31); 0 is a no-op
  int64_t y_stride = 0;  // >= w.in
  int32_t first = 0;     // >= 0: the token of w's first row
  float scale = 1;
};

}  // namespace lynx::kernels
