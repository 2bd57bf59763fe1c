#pragma once

#include <cstdint>

#include "kernels/gemm/gemm_args.h"

namespace lynx::kernels {

// One SwiGLU expert.
struct ExpertWeights {
  Matrix gate = {};  // [intermediate, hidden]
  Matrix up = {};    // [intermediate, hidden]
  Matrix down = {};  // [hidden, intermediate]
};

// The feed-forward part of a mixture of experts, added to y:
//
//   y[r] += sum over j < top_k of weights[r, j] * down_e(round(silu(gate_e(x[r])) * up_e(x[r]))),
//   e = ids[r, j]
//
// where round() is to bf16 if `round_bf16`, else nothing. A dense layer is one expert with
// weight 1.
struct ExpertFfnArgs {
  const float* x = nullptr;                // [rows, hidden], rows x_stride elements apart
  const ExpertWeights* experts = nullptr;  // [expert_count]
  const int32_t* ids = nullptr;            // [rows, top_k], each in [0, expert_count)
  const float* weights = nullptr;          // [rows, top_k]
  float* y = nullptr;                      // [rows, hidden], rows y_stride elements apart
  int64_t rows = 0;                        // >= 0; 0 is a no-op
  int64_t hidden = 0;                      // > 0
  int64_t intermediate = 0;                // > 0
  int64_t expert_count = 0;                // > 0
  int64_t top_k = 0;                       // > 0
  int64_t x_stride = 0;                    // >= hidden
  int64_t y_stride = 0;                    // >= hidden
  bool round_bf16 = false;
};

}  // namespace lynx::kernels
