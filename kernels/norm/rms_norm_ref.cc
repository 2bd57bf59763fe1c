#include <cmath>

#include "kernels/core/float_convert.h"
#include "kernels/norm/rms_norm_backends.h"

namespace lynx::kernels::internal {

// Written to be read next to the formula in rms_norm_args.h. Do not tune it.
void RmsNormReference(const RmsNormArgs& args) {
  for (int64_t r = 0; r < args.rows; ++r) {
    const float* x = args.x + r * args.x_stride;
    float* y = args.y + r * args.y_stride;
    double sum_of_squares = 0;
    for (int64_t c = 0; c < args.hidden; ++c) sum_of_squares += static_cast<double>(x[c]) * x[c];
    const double mean = sum_of_squares / static_cast<double>(args.hidden);
    const double scale = 1.0 / std::sqrt(mean + static_cast<double>(args.epsilon));
    for (int64_t c = 0; c < args.hidden; ++c) {
      if (args.round_bf16) {
        y[c] = RoundToBf16(args.gain[c] * RoundToBf16(static_cast<float>(x[c] * scale)));
      } else {
        y[c] = static_cast<float>(x[c] * scale * args.gain[c]);
      }
    }
  }
}

}  // namespace lynx::kernels::internal
