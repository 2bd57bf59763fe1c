#pragma once

// For kernel bodies with AVX-512 only.

#include <immintrin.h>

#include "kernels/core/simd.h"

namespace lynx::kernels::LYNX_KERNEL_ISA {

// Lane j of a[i] with lane i of a[j].
inline void Transpose(__m512 (&a)[kLanes]) {
  __m512 b[kLanes];
#pragma GCC unroll 8
  for (int i = 0; i < kLanes; i += 2) {
    b[i] = _mm512_unpacklo_ps(a[i], a[i + 1]);
    b[i + 1] = _mm512_unpackhi_ps(a[i], a[i + 1]);
  }
  // a[4 i + c]: in lane 4 l + k, row 4 i + k of column 4 l + c.
#pragma GCC unroll 4
  for (int i = 0; i < kLanes; i += 4) {
    a[i] = _mm512_shuffle_ps(b[i], b[i + 2], 0x44);
    a[i + 1] = _mm512_shuffle_ps(b[i], b[i + 2], 0xee);
    a[i + 2] = _mm512_shuffle_ps(b[i + 1], b[i + 3], 0x44);
    a[i + 3] = _mm512_shuffle_ps(b[i + 1], b[i + 3], 0xee);
  }
#pragma GCC unroll 4
  for (int c = 0; c < 4; ++c) {
    const __m512 low01 = _mm512_shuffle_f32x4(a[c], a[4 + c], 0x44);
    const __m512 low23 = _mm512_shuffle_f32x4(a[8 + c], a[12 + c], 0x44);
    const __m512 high01 = _mm512_shuffle_f32x4(a[c], a[4 + c], 0xee);
    const __m512 high23 = _mm512_shuffle_f32x4(a[8 + c], a[12 + c], 0xee);
    b[c] = _mm512_shuffle_f32x4(low01, low23, 0x88);
    b[4 + c] = _mm512_shuffle_f32x4(low01, low23, 0xdd);
    b[8 + c] = _mm512_shuffle_f32x4(high01, high23, 0x88);
    b[12 + c] = _mm512_shuffle_f32x4(high01, high23, 0xdd);
  }
#pragma GCC unroll 16
  for (int i = 0; i < kLanes; ++i) a[i] = b[i];
}

}  // namespace lynx::kernels::LYNX_KERNEL_ISA
