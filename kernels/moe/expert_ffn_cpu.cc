#include "kernels/core/simd.h"
#include "kernels/moe/expert_ffn_backends.h"

namespace lynx::kernels::LYNX_KERNEL_ISA {

namespace {

F32x16 Activate(F32x16 gate, F32x16 up, float clamp) {
  if (clamp == 0) return Mul(Silu(gate), up);
  // Comparisons that NaN fails, so that it stays.
  const F32x16 high = Set1(clamp);
  const F32x16 low = Set1(-clamp);
  gate = SelectLess(high, gate, high, gate);
  up = SelectLess(high, up, high, SelectLess(up, low, low, up));
  const F32x16 slope = Set1(1.702f);
  const F32x16 sigmoid = Div(Set1(1.0f), Add(Set1(1.0f), Exp(Sub(Zero(), Mul(slope, gate)))));
  return Mul(Mul(gate, sigmoid), Add(up, Set1(1.0f)));
}

}  // namespace

void ActivateGate(const ExpertFfnArgs& args, const float* product, const float* bias, int64_t rows,
                  int64_t columns, int64_t stride, void* inner) {
  static_assert(kGateOutputsPerPanel == kLanes);
  float mask[kLanes];
  for (int64_t i = 0; i < kLanes; ++i) mask[i] = i < columns ? 1.0f : 0.0f;
  const F32x16 valid = Load(mask);
  for (int64_t r = 0; r < rows; ++r, product += kPanelRows) {
    F32x16 gate = Load(product);
    F32x16 up = Load(product + kLanes);
    if (bias != nullptr) {
      gate = Add(gate, Load(bias));
      up = Add(up, Load(bias + kLanes));
    }
    F32x16 value = Activate(gate, up, args.clamp);
    // Not a product with zero: what NaN in a row makes of the padding must not reach the next
    // product.
    if (columns < kLanes) value = SelectLess(Zero(), valid, value, Zero());
    if (args.x_dtype == DType::kF32) {
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
    const auto weight = [&](int64_t j) {
      return args.scale_input ? 1.0f : args.weights[r * args.top_k + j];
    };
    const int32_t* ids = args.ids + r * args.top_k;
    const float* ranks = outer + r * args.top_k * stride;
    float* y = args.y + r * args.y_stride;
    for (int64_t h = 0; h < whole; h += kLanes) {
      F32x16 sum = Zero();
      for (int64_t j = 0; j < args.top_k; ++j) {
        if (ids[j] == kNoExpert) continue;
        sum = MulAdd(Set1(weight(j)), Load(ranks + j * stride + h), sum);
      }
      Store(y + h, Add(Load(y + h), sum));
    }
    if (const int64_t tail = args.hidden - whole; tail > 0) {
      F32x16 sum = Zero();
      for (int64_t j = 0; j < args.top_k; ++j) {
        if (ids[j] == kNoExpert) continue;
        sum = MulAdd(Set1(weight(j)), LoadPartial(ranks + j * stride + whole, tail), sum);
      }
      StorePartial(y + whole, Add(LoadPartial(y + whole, tail), sum), tail);
    }
  }
}

}  // namespace lynx::kernels::LYNX_KERNEL_ISA
