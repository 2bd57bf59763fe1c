#pragma once

#include <cstdint>

#include "common/base/dtype.h"

namespace lynx::kernels {

// Row-wise RMS normalisation:
//
//   y[r, c] = round(gain[c] * round(x[r, c] / sqrt(mean over c of x[r, c]^2 + epsilon)))
//
// where round() is to bf16 if `round_bf16` or y is bf16, else nothing: the model families cast to
// their own type before they multiply by the gain.
struct RmsNormArgs {
  const float* x = nullptr;     // [rows, hidden], rows x_stride elements apart
  const float* gain = nullptr;  // [hidden]
  void* y = nullptr;            // [rows, hidden] of y_dtype, rows y_stride elements apart
  int64_t rows = 0;             // [0, 2^31); 0 is a no-op
  int64_t hidden = 0;           // > 0
  int64_t x_stride = 0;         // >= hidden
  int64_t y_stride = 0;         // >= hidden
  float epsilon = 1e-6f;        // > 0
  DType y_dtype = DType::kF32;  // kF32 or kBf16
  bool round_bf16 = false;
};

}  // namespace lynx::kernels
