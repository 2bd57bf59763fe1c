#include "kernels/cast/cast_backends.h"
#include "kernels/core/simd.h"

namespace lynx::kernels::LYNX_KERNEL_ISA {
namespace {

inline F32x16 Rounded(const float*, F32x16 a) { return a; }
inline F32x16 Rounded(const Bf16*, F32x16 a) { return RoundBf16(a); }

template <typename T>
void Head(const float* x, int64_t width, int64_t y_width, T* y) {
  for (int64_t d = 0; d < y_width; d += kLanes) {
    const int64_t left = width - d;
    const F32x16 value = left >= kLanes ? Load(x + d)
                         : left > 0     ? LoadPartial(x + d, left)
                                        : Zero();
    if (y_width - d >= kLanes) {
      Store(y + d, Rounded(y, value));
    } else {
      StorePartial(y + d, Rounded(y, value), y_width - d);
    }
  }
}

template <typename T>
void Rows(const CastArgs& args, int64_t begin, int64_t end) {
  for (int64_t r = begin; r < end; ++r) {
    for (int64_t h = 0; h < args.heads; ++h) {
      Head(args.x + r * args.x_stride + h * args.x_head_stride, args.width, args.y_width,
           static_cast<T*>(args.y) + r * args.y_stride + h * args.y_head_stride);
    }
  }
}

}  // namespace

void CastRows(const CastArgs& args, int64_t begin, int64_t end) {
  if (args.y_dtype == DType::kBf16) {
    Rows<Bf16>(args, begin, end);
  } else {
    Rows<float>(args, begin, end);
  }
}

}  // namespace lynx::kernels::LYNX_KERNEL_ISA
