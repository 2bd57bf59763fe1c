#include <cmath>
#include <vector>

#include "kernels/core/float_convert.h"
#include "kernels/gemm/gemm_ref.h"
#include "kernels/moe/expert_ffn_backends.h"

namespace lynx::kernels::internal {

// Written to be read next to the formula in expert_ffn_args.h. Do not tune it.
void ExpertFfnReference(const ExpertFfnArgs& args) {
  std::vector<double> inner(static_cast<size_t>(args.intermediate));
  std::vector<double> total(static_cast<size_t>(args.hidden));
  for (int64_t r = 0; r < args.rows; ++r) {
    total.assign(total.size(), 0.0);
    for (int64_t j = 0; j < args.top_k; ++j) {
      const ExpertWeights& expert = args.experts[args.ids[r * args.top_k + j]];
      for (int64_t i = 0; i < args.intermediate; ++i) {
        const int64_t gate_row = i / kGateOutputsPerPanel * kPanelRows + i % kGateOutputsPerPanel;
        double gate = 0;
        double up = 0;
        for (int64_t h = 0; h < args.hidden; ++h) {
          const double x = ActivationAt(args.x, args.x_dtype, r * args.x_stride + h);
          gate += x * WeightAt(expert.gate_up, gate_row, h);
          up += x * WeightAt(expert.gate_up, gate_row + kGateOutputsPerPanel, h);
        }
        const double value = gate / (1 + std::exp(-gate)) * up;
        inner[static_cast<size_t>(i)] =
            args.x_dtype == DType::kBf16 ? RoundToBf16(static_cast<float>(value)) : value;
      }
      for (int64_t h = 0; h < args.hidden; ++h) {
        double down = 0;
        for (int64_t i = 0; i < args.intermediate; ++i) {
          down += inner[static_cast<size_t>(i)] * WeightAt(expert.down, h, i);
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
