#include "kernels/core/simd.h"
#include "kernels/rope/rope_backends.h"

namespace lynx::kernels::LYNX_KERNEL_ISA {

void RopeRows(const RopeArgs& args, int64_t begin, int64_t end) {
  const int64_t half = args.rotary_dim / 2;
  const int64_t whole = half / kLanes * kLanes;
  const int64_t tail = half - whole;
  for (int64_t r = begin; r < end; ++r) {
    const float* cosines = args.cosines + args.positions[r] * half;
    const float* sines = args.sines + args.positions[r] * half;
    for (int64_t h = 0; h < args.heads; ++h) {
      float* x = args.x + r * args.x_stride + h * args.head_stride;
      for (int64_t j = 0; j < whole; j += kLanes) {
        const F32x16 a = Load(x + j), b = Load(x + j + half);
        const F32x16 cosine = Load(cosines + j), sine = Load(sines + j);
        Store(x + j, Sub(Mul(a, cosine), Mul(b, sine)));
        Store(x + j + half, Add(Mul(b, cosine), Mul(a, sine)));
      }
      if (tail > 0) {
        const F32x16 a = LoadPartial(x + whole, tail), b = LoadPartial(x + whole + half, tail);
        const F32x16 cosine = LoadPartial(cosines + whole, tail);
        const F32x16 sine = LoadPartial(sines + whole, tail);
        StorePartial(x + whole, Sub(Mul(a, cosine), Mul(b, sine)), tail);
        StorePartial(x + whole + half, Add(Mul(b, cosine), Mul(a, sine)), tail);
      }
    }
  }
}

}  // namespace lynx::kernels::LYNX_KERNEL_ISA
