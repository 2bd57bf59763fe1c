#include "kernels/gemm/gemm_ref.h"

#include "kernels/core/float_convert.h"

namespace lynx::kernels::internal {

float ActivationAt(const void* x, DType dtype, int64_t i) {
  return dtype == DType::kF32 ? static_cast<const float*>(x)[i]
                              : Bf16ToF32(static_cast<const uint16_t*>(x)[i]);
}

// Written to be read next to the formula in gemm_args.h. Do not tune it.
void GemmReference(const GemmArgs& args) {
  for (int64_t r = 0; r < args.rows; ++r) {
    for (int64_t o = 0; o < args.w.out; ++o) {
      float& y = args.y[r * args.y_stride + o];
      double sum = 0;
      for (int64_t i = 0; i < args.w.in; ++i) {
        sum += double{ActivationAt(args.x, args.x_dtype, r * args.x_stride + i)} *
               WeightAt(args.w, o, i);
      }
      const double bias = args.bias == nullptr ? 0.0 : args.bias[o];
      y = static_cast<float>((args.accumulate ? y : 0.0) + (bias + args.scale * sum));
    }
  }
}

}  // namespace lynx::kernels::internal
