#include <cmath>

#include "kernels/core/float_convert.h"
#include "kernels/norm/rms_norm_backends.h"

namespace lynx::kernels::internal {

// Written to be read next to the formula in rms_norm_args.h. Do not tune it.
void RmsNormReference(const RmsNormArgs& args) {
  for (int64_t r = 0; r < args.rows; ++r) {
    const float* x = args.x + r * args.x_stride;
    double sum_of_squares = 0;
    for (int64_t c = 0; c < args.hidden; ++c) sum_of_squares += static_cast<double>(x[c]) * x[c];
    const double mean = sum_of_squares / static_cast<double>(args.hidden);
    const double scale = 1.0 / std::sqrt(mean + static_cast<double>(args.epsilon));
    for (int64_t c = 0; c < args.hidden; ++c) {
      const int64_t at = r * args.y_stride + c;
      const float rounded =
          RoundToBf16(args.gain[c] * RoundToBf16(static_cast<float>(x[c] * scale)));
      if (args.y_dtype == DType::kBf16) {
        static_cast<uint16_t*>(args.y)[at] = F32ToBf16(rounded);
      } else {
        static_cast<float*>(args.y)[at] =
            args.round_bf16 ? rounded : static_cast<float>(x[c] * scale * args.gain[c]);
      }
    }
  }
}

}  // namespace lynx::kernels::internal
