#include <cmath>
#include <vector>

#include "kernels/core/float_convert.h"
#include "kernels/gemm/gemm_ref.h"
#include "kernels/moe/expert_ffn_backends.h"
#include "kernels/moe/order_free_sum.h"

namespace lynx::kernels::internal {

namespace {

float Round(float value, DType dtype) { return dtype == DType::kBf16 ? RoundToBf16(value) : value; }

double Activate(double gate, double up, double clamp) {
  if (clamp == 0) return gate / (1 + std::exp(-gate)) * up;
  gate = gate > clamp ? clamp : gate;  // NaN stays.
  up = up > clamp ? clamp : up < -clamp ? -clamp : up;
  return gate / (1 + std::exp(-1.702 * gate)) * (up + 1);
}

}  // namespace

// Written to be read next to the formula in expert_ffn_args.h. Do not tune it.
void ExpertFfnReference(const ExpertFfnArgs& args) {
  std::vector<double> inner(static_cast<size_t>(args.intermediate));
  std::vector<double> total(static_cast<size_t>(args.hidden));
  for (int64_t r = 0; r < args.rows; ++r) {
    total.assign(total.size(), 0.0);
    for (int64_t j = 0; j < args.top_k; ++j) {
      if (args.ids[r * args.top_k + j] == kNoExpert) continue;
      const float weight = args.weights[r * args.top_k + j];
      const ExpertWeights& expert = args.experts[args.ids[r * args.top_k + j]];
      for (int64_t i = 0; i < args.intermediate; ++i) {
        const int64_t gate_row = GateOutput(i);
        const int64_t up_row = gate_row + kGateOutputsPerPanel;
        const float* bias = expert.gate_up_bias;
        double gate = bias == nullptr ? 0 : bias[gate_row];
        double up = bias == nullptr ? 0 : bias[up_row];
        for (int64_t h = 0; h < args.hidden; ++h) {
          double x = ActivationAt(args.x, args.x_dtype, r * args.x_stride + h);
          if (args.scale_input) x = Round(static_cast<float>(x * weight), args.x_dtype);
          gate += x * WeightAt(expert.gate_up, gate_row, h);
          up += x * WeightAt(expert.gate_up, up_row, h);
        }
        const double value = Activate(gate, up, double{args.clamp});
        inner[static_cast<size_t>(i)] =
            args.x_dtype == DType::kBf16 ? Round(static_cast<float>(value), args.x_dtype) : value;
      }
      for (int64_t h = 0; h < args.hidden; ++h) {
        double down = expert.down_bias == nullptr ? 0 : expert.down_bias[h];
        for (int64_t i = 0; i < args.intermediate; ++i) {
          down += inner[static_cast<size_t>(i)] * WeightAt(expert.down, h, i);
        }
        const double weighted = (args.scale_input ? 1 : weight) * down;
        if (args.sums != nullptr) args.sums[r * args.hidden + h] += ToSummand(weighted);
        total[static_cast<size_t>(h)] += weighted;
      }
    }
    if (args.sums != nullptr) continue;
    for (int64_t h = 0; h < args.hidden; ++h) {
      float& y = args.y[r * args.y_stride + h];
      y = static_cast<float>(y + total[static_cast<size_t>(h)]);
    }
  }
}

}  // namespace lynx::kernels::internal
