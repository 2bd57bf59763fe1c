#include "kernels/cast/cast_backends.h"
#include "kernels/core/float_convert.h"

namespace lynx::kernels::internal {

// Written to be read next to the formula in cast_args.h. Do not tune it.
void CastReference(const CastArgs& args) {
  for (int64_t r = 0; r < args.rows; ++r) {
    for (int64_t h = 0; h < args.heads; ++h) {
      const float* x = args.x + r * args.x_stride + h * args.x_head_stride;
      for (int64_t d = 0; d < args.y_width; ++d) {
        const float value = d < args.width ? x[d] : 0.0f;
        const int64_t at = r * args.y_stride + h * args.y_head_stride + d;
        if (args.y_dtype == DType::kBf16) {
          static_cast<uint16_t*>(args.y)[at] = F32ToBf16(value);
        } else {
          static_cast<float*>(args.y)[at] = value;
        }
      }
    }
  }
}

}  // namespace lynx::kernels::internal
