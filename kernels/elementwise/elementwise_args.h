#pragma once

#include <cstdint>

namespace lynx::kernels {

// What happens to rows between the large operations. Rows are in [0, 2^31), 0 of them a no-op;
// widths are > 0, and rows of x and y lie x_stride and y_stride >= width elements apart.

// x[r, c] = x[r, c] held within [-limit, limit]; NaN stays.
struct ClipArgs {
  float* x = nullptr;  // [rows, width]
  int64_t rows = 0;
  int64_t width = 0;
  int64_t x_stride = 0;
  float limit = 0;  // > 0
};

// Queries that grow with their position, as Llama 4 does it where it has no RoPE:
//
//   x[r, c] *= 1 + growth * log(1 + floor((positions[r] + 1) / floor))
struct GrowArgs {
  float* x = nullptr;                  // [rows, width]
  const int32_t* positions = nullptr;  // [rows]
  int64_t rows = 0;
  int64_t width = 0;
  int64_t x_stride = 0;
  float growth = 0;
  float floor = 0;  // > 0
};

// Of a shared expert, what its gate makes of its weights:
//
//   weights[r] = scale / (1 + exp(-weights[r]))
struct GateWeightsArgs {
  float* weights = nullptr;  // [rows]
  int64_t rows = 0;
  float scale = 1;
};

// y[r, c] = x[numbers[r], c]
struct GatherRowsArgs {
  const float* x = nullptr;          // Rows that numbers name.
  const int32_t* numbers = nullptr;  // [rows], each >= 0
  float* y = nullptr;                // [rows, width]; does not overlap x
  int64_t rows = 0;
  int64_t width = 0;
  int64_t x_stride = 0;
  int64_t y_stride = 0;
};

}  // namespace lynx::kernels
