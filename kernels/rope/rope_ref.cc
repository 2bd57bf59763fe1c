#include "kernels/rope/rope_backends.h"

namespace lynx::kernels::internal {

// Written to be read next to the formula in rope_args.h. Do not tune it.
void RopeReference(const RopeArgs& args) {
  const int64_t half = args.rotary_dim / 2;
  for (int64_t r = 0; r < args.rows; ++r) {
    for (int64_t h = 0; h < args.heads; ++h) {
      float* x = args.x + r * args.x_stride + h * args.head_stride;
      for (int64_t j = 0; j < half; ++j) {
        const double cosine = args.cosines[args.positions[r] * half + j];
        const double sine = args.sines[args.positions[r] * half + j];
        const double a = x[j];
        const double b = x[j + half];
        x[j] = static_cast<float>(a * cosine - b * sine);
        x[j + half] = static_cast<float>(b * cosine + a * sine);
      }
    }
  }
}

}  // namespace lynx::kernels::internal
