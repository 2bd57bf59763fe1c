#include "kernels/core/simd.h"
#include "kernels/norm/rms_norm_backends.h"

namespace lynx::kernels::LYNX_KERNEL_ISA {

namespace {

template <bool round_bf16, typename T>
void Rows(const RmsNormArgs& args, int64_t begin, int64_t end) {
  const int64_t whole = args.hidden / kLanes * kLanes;
  const int64_t tail = args.hidden - whole;
  for (int64_t r = begin; r < end; ++r) {
    const float* x = args.x + r * args.x_stride;
    T* y = static_cast<T*>(args.y) + r * args.y_stride;
    F32x16 sum = Zero();
    for (int64_t c = 0; c < whole; c += kLanes) {
      const F32x16 v = Load(x + c);
      sum = MulAdd(v, v, sum);
    }
    if (tail > 0) {
      const F32x16 v = LoadPartial(x + whole, tail);
      sum = MulAdd(v, v, sum);
    }
    const float mean = ReduceAdd(sum) / static_cast<float>(args.hidden);
    const F32x16 scale = Set1(1.0f / __builtin_sqrtf(mean + args.epsilon));
    auto apply = [&](F32x16 v, F32x16 gain) {
      const F32x16 normed = Mul(v, scale);
      return round_bf16 ? RoundBf16(Mul(gain, RoundBf16(normed))) : Mul(gain, normed);
    };
    for (int64_t c = 0; c < whole; c += kLanes) {
      Store(y + c, apply(Load(x + c), Load(args.gain + c)));
    }
    if (tail > 0) {
      StorePartial(y + whole,
                   apply(LoadPartial(x + whole, tail), LoadPartial(args.gain + whole, tail)), tail);
    }
  }
}

}  // namespace

void RmsNormRows(const RmsNormArgs& args, int64_t begin, int64_t end) {
  if (args.y_dtype == DType::kBf16) {
    Rows<true, Bf16>(args, begin, end);
  } else if (args.round_bf16) {
    Rows<true, float>(args, begin, end);
  } else {
    Rows<false, float>(args, begin, end);
  }
}

}  // namespace lynx::kernels::LYNX_KERNEL_ISA
