#include "kernels/core/simd.h"
#include "kernels/moe/expert_ffn_backends.h"

namespace lynx::kernels::LYNX_KERNEL_ISA {

void SwiGlu(const float* gate_up, int64_t rows, int64_t columns, DType dtype, int64_t stride,
            void* inner) {
  static_assert(kGateOutputsPerPanel == kLanes);
  float mask[kLanes];
  for (int64_t i = 0; i < kLanes; ++i) mask[i] = i < columns ? 1.0f : 0.0f;
  const F32x16 valid = Load(mask);
  for (int64_t r = 0; r < rows; ++r, gate_up += kPanelRows) {
    F32x16 value = Mul(Silu(Load(gate_up)), Load(gate_up + kLanes));
    // Not a product with zero: what NaN in a row makes of the padding must not reach the next
    // product.
    if (columns < kLanes) value = SelectLess(Zero(), valid, value, Zero());
    if (dtype == DType::kF32) {
      Store(static_cast<float*>(inner) + r * stride, value);
    } else {
      Store(static_cast<Bf16*>(inner) + r * stride, RoundBf16(value));
    }
  }
}

void CombineRanks(const ExpertFfnArgs& args, const float* outer, int64_t stride, int64_t begin,
                  int64_t end) {
  const int64_t whole = args.hidden / kLanes * kLanes;
  for (int64_t r = begin; r < end; ++r) {
    const float* weights = args.weights + r * args.top_k;
    const float* ranks = outer + r * args.top_k * stride;
    float* y = args.y + r * args.y_stride;
    for (int64_t h = 0; h < whole; h += kLanes) {
      F32x16 sum = Zero();
      for (int64_t j = 0; j < args.top_k; ++j) {
        sum = MulAdd(Set1(weights[j]), Load(ranks + j * stride + h), sum);
      }
      Store(y + h, Add(Load(y + h), sum));
    }
    if (const int64_t tail = args.hidden - whole; tail > 0) {
      F32x16 sum = Zero();
      for (int64_t j = 0; j < args.top_k; ++j) {
        sum = MulAdd(Set1(weights[j]), LoadPartial(ranks + j * stride + whole, tail), sum);
      }
      StorePartial(y + whole, Add(LoadPartial(y + whole, tail), sum), tail);
    }
  }
}

}  // namespace lynx::kernels::LYNX_KERNEL_ISA
