#include "common/moe/gate_math.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace lynx::moe {
namespace {

[[gnu::always_inline]] inline float Exp(float x) {
  if (std::isnan(x)) return x;
  if (x < -87.3f) return 0.0f;
  const float n = std::nearbyint(x * 1.44269504f);  // log2(e)
  // ln 2 in two parts, of which n times the first is exact.
  float r = std::fma(n, -0.693359375f, x);
  r = std::fma(n, 2.12194440e-4f, r);
  // (e^r - 1 - r) / r^2 on |r| <= ln(2) / 2.
  float p = 1.9875691500e-4f;
  p = std::fma(p, r, 1.3981999507e-3f);
  p = std::fma(p, r, 8.3334519073e-3f);
  p = std::fma(p, r, 4.1665795894e-2f);
  p = std::fma(p, r, 1.6666665459e-1f);
  p = std::fma(p, r, 5.0000001201e-1f);
  p = std::fma(p, r * r, r) + 1.0f;
  return p * std::bit_cast<float>(static_cast<uint32_t>(static_cast<int32_t>(n) + 127) << 23);
}

void ExpsPortable(const float* x, size_t count, float offset, float* y) {
  for (size_t i = 0; i < count; ++i) y[i] = Exp(x[i] - offset);
}

#if defined(__x86_64__)
// The same arithmetic in instructions instead of calls into the C library.
[[gnu::target("avx2,fma")]] void ExpsFma(const float* x, size_t count, float offset, float* y) {
  for (size_t i = 0; i < count; ++i) y[i] = Exp(x[i] - offset);
}

#define LYNX_AVX512 [[gnu::target("avx512f,avx512dq,avx512vl")]]

// The steps of Exp, sixteen at a time.
LYNX_AVX512 inline __m512 Exp16(__m512 x) {
  const __m512 n = _mm512_roundscale_ps(_mm512_mul_ps(x, _mm512_set1_ps(1.44269504f)),
                                        _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  __m512 r = _mm512_fmadd_ps(n, _mm512_set1_ps(-0.693359375f), x);
  r = _mm512_fmadd_ps(n, _mm512_set1_ps(2.12194440e-4f), r);
  __m512 p = _mm512_set1_ps(1.9875691500e-4f);
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.3981999507e-3f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(8.3334519073e-3f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(4.1665795894e-2f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.6666665459e-1f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(5.0000001201e-1f));
  p = _mm512_add_ps(_mm512_fmadd_ps(p, _mm512_mul_ps(r, r), r), _mm512_set1_ps(1));
  const __m512i power =
      _mm512_slli_epi32(_mm512_add_epi32(_mm512_cvtps_epi32(n), _mm512_set1_epi32(127)), 23);
  const __m512 y = _mm512_mul_ps(p, _mm512_castsi512_ps(power));
  const __mmask16 small = _mm512_cmp_ps_mask(x, _mm512_set1_ps(-87.3f), _CMP_LT_OQ);
  const __mmask16 nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
  return _mm512_mask_mov_ps(_mm512_mask_mov_ps(y, small, _mm512_setzero_ps()), nan, x);
}

LYNX_AVX512 inline __mmask16 Lanes(size_t left) {
  return static_cast<__mmask16>(left >= 16 ? 0xFFFF : (1u << left) - 1);
}

LYNX_AVX512 void ExpsAvx512(const float* x, size_t count, float offset, float* y) {
  for (size_t i = 0; i < count; i += 16) {
    const __mmask16 lanes = Lanes(count - i);
    const __m512 v = _mm512_maskz_loadu_ps(lanes, x + i);
    _mm512_mask_storeu_ps(y + i, lanes, Exp16(_mm512_sub_ps(v, _mm512_set1_ps(offset))));
  }
}

LYNX_AVX512 void ExpsOfAvx512(const float* x, const int32_t* ids, size_t count, float offset,
                              float* y) {
  for (size_t i = 0; i < count; i += 16) {
    const __mmask16 lanes = Lanes(count - i);
    const __m512i at = _mm512_maskz_loadu_epi32(lanes, ids + i);
    const __m512 v = _mm512_mask_i32gather_ps(_mm512_setzero_ps(), lanes, at, x, 4);
    _mm512_mask_storeu_ps(y + i, lanes, Exp16(_mm512_sub_ps(v, _mm512_set1_ps(offset))));
  }
}

bool HasAvx512() {
  static const bool has = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
                          __builtin_cpu_supports("avx512vl");
  return has;
}
#endif

void ExpsElsewhere(const float* x, size_t count, float offset, float* y) {
#if defined(__x86_64__)
  static const bool fma = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  if (fma) return ExpsFma(x, count, offset, y);
#endif
  ExpsPortable(x, count, offset, y);
}

}  // namespace

float GateExp(float x) { return Exp(x); }

void GateExps(const float* x, size_t count, float offset, float* y) {
#if defined(__x86_64__)
  if (HasAvx512()) return ExpsAvx512(x, count, offset, y);
#endif
  ExpsElsewhere(x, count, offset, y);
}

void GateExpsOf(const float* x, const int32_t* ids, size_t count, float offset, float* y) {
#if defined(__x86_64__)
  if (HasAvx512()) return ExpsOfAvx512(x, ids, count, offset, y);
#endif
  for (size_t i = 0; i < count; ++i) y[i] = x[ids[i]];
  ExpsElsewhere(y, count, offset, y);
}

float GateSigmoid(float x) { return Exp(std::min(x, 0.0f)) / (1.0f + Exp(-std::abs(x))); }

}  // namespace lynx::moe
