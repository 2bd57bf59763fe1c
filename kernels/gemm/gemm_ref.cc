#include "kernels/core/float_convert.h"
#include "kernels/gemm/gemm_backends.h"

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

// Written to be read next to the formula in gemm_args.h. Do not tune it.
void GemmReference(const GemmArgs& args) {
  for (int64_t r = 0; r < args.rows; ++r) {
    for (int64_t o = 0; o < args.out; ++o) {
      float& y = args.y[r * args.y_stride + o];
      double sum = args.accumulate ? y : 0.0;
      for (int64_t i = 0; i < args.in; ++i) {
        sum += args.x[r * args.x_stride + i] * Element(args.w, o * args.in + i);
      }
      y = static_cast<float>(sum);
    }
  }
}

}  // namespace lynx::kernels::internal
