#pragma once

#include <cstdint>

#include "kernels/moe/expert_weights.h"

namespace lynx::kernels {

// The feed-forward part of a mixture of experts, added to y:
//
//   y[r] += sum over j < top_k of weights[r, j] * down_e(round(act(gate_e(x[r]), up_e(x[r])))),
//   e = ids[r, j]
//
// where round() is to x_dtype and act(g, u) is silu(g) * u, or with a clamp c > 0, as in gpt-oss,
// with g' = min(g, c) and u' = u within [-c, c]:
//
//   act(g, u) = g' * sigmoid(1.702 g') * (u' + 1)
//
// If `scale_input`, weights[r, j] multiplies round(x[r]) instead of the expert's output. A dense
// layer is one expert with weight 1. Rows of x are as in GemmArgs.
//
// An id of kNoExpert adds nothing.
//
// With `sums` what is added goes there in place of y, each weighted output of an expert by
// ToSummand() of its own (order_free_sum.h): so it does not matter which call computes which
// expert.
inline constexpr int32_t kNoExpert = -1;

struct ExpertFfnArgs {
  const void* x = nullptr;  // [rows, hidden] of x_dtype, rows x_stride elements apart
  const ExpertWeights* experts = nullptr;  // [expert_count], all of one shape and type
  const int32_t* ids = nullptr;            // [rows, top_k], each in [0, expert_count) or kNoExpert
  const float* weights = nullptr;          // [rows, top_k]
  float* y = nullptr;                      // [rows, hidden], rows y_stride elements apart
  double* sums = nullptr;                  // [rows, hidden], or null
  int64_t rows = 0;                        // >= 0; 0 is a no-op
  int64_t hidden = 0;                      // > 0
  int64_t intermediate = 0;                // > 0
  int64_t expert_count = 0;                // > 0
  int64_t top_k = 0;                       // > 0
  int64_t x_stride = 0;                    // >= hidden; bf16: >= hidden rounded up to kPanelDepth
  int64_t y_stride = 0;                    // >= hidden
  DType x_dtype = DType::kF32;             // kF32 or kBf16
  // On GPUs, where the host cannot look: the type of all weights. Those of another make y NaN.
  DType device_weights = DType::kBf16;
  float clamp = 0;  // >= 0
  bool scale_input = false;
};

}  // namespace lynx::kernels
