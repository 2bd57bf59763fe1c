#include <cmath>
#include <vector>

#include "kernels/core/float_convert.h"
#include "kernels/moe/expert_ffn_backends.h"

namespace lynx::kernels::internal {
namespace {

double Element(const Matrix& w, int64_t index) {
  switch (w.dtype) {
    case DType::kF32:
      return static_cast<const float*>(w.data)[index];
    case DType::kBf16:
      return Bf16ToF32(static_cast<const uint16_t*>(w.data)[index]);
    case DType::kF16:
      return F16ToF32(static_cast<const uint16_t*>(w.data)[index]);
  }
  return 0;
}

}  // namespace

// Written to be read next to the formula in expert_ffn_args.h. Do not tune it.
void ExpertFfnReference(const ExpertFfnArgs& args) {
  std::vector<double> inner(static_cast<size_t>(args.intermediate));
  std::vector<double> total(static_cast<size_t>(args.hidden));
  for (int64_t r = 0; r < args.rows; ++r) {
    const float* x = args.x + r * args.x_stride;
    total.assign(total.size(), 0.0);
    for (int64_t j = 0; j < args.top_k; ++j) {
      const ExpertWeights& expert = args.experts[args.ids[r * args.top_k + j]];
      for (int64_t i = 0; i < args.intermediate; ++i) {
        double gate = 0;
        double up = 0;
        for (int64_t h = 0; h < args.hidden; ++h) {
          gate += x[h] * Element(expert.gate, i * args.hidden + h);
          up += x[h] * Element(expert.up, i * args.hidden + h);
        }
        const double value = gate / (1 + std::exp(-gate)) * up;
        inner[static_cast<size_t>(i)] =
            args.round_bf16 ? RoundToBf16(static_cast<float>(value)) : value;
      }
      for (int64_t h = 0; h < args.hidden; ++h) {
        double down = 0;
        for (int64_t i = 0; i < args.intermediate; ++i) {
          down += inner[static_cast<size_t>(i)] * Element(expert.down, h * args.intermediate + i);
        }
        total[static_cast<size_t>(h)] += args.weights[r * args.top_k + j] * down;
      }
    }
    for (int64_t h = 0; h < args.hidden; ++h) {
      float& y = args.y[r * args.y_stride + h];
      y = static_cast<float>(y + total[static_cast<size_t>(h)]);
    }
  }
}

}  // namespace lynx::kernels::internal
