#pragma once

// For kernel bodies only: sixteen float32 lanes as one value, on every instruction set.
//
// Sixteen lanes everywhere, also where a register holds fewer, so that sums are ordered alike on
// all machines. Nothing here contracts, reassociates or flushes: each function rounds as written.
// Loads need no alignment.

#include <cstdint>

#if defined(__AVX2__)
#include <immintrin.h>
#endif

#if !defined(LYNX_KERNEL_ISA)
#error "simd.h is for CPU_BODIES of lynx_kernel_library()"
#endif

namespace lynx::kernels::LYNX_KERNEL_ISA {

inline constexpr int kLanes = 16;

// Storage of a 16-bit element; only the loads below look inside.
struct Bf16 {
  uint16_t bits;
};
struct F16 {
  uint16_t bits;
};

#if defined(__AVX512F__)

struct F32x16 {
  __m512 v;
};

inline F32x16 Zero() { return {_mm512_setzero_ps()}; }
inline F32x16 Set1(float x) { return {_mm512_set1_ps(x)}; }
inline F32x16 Load(const float* p) { return {_mm512_loadu_ps(p)}; }
inline F32x16 Load(const Bf16* p) {
  const __m256i raw = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(raw), 16))};
}
inline F32x16 Load(const F16* p) {
  return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
}
// Of sixteen pairs, or of one in all lanes.
inline void LoadPairs(const Bf16* p, F32x16* even, F32x16* odd) {
  const __m512i pairs = _mm512_loadu_si512(p);
  *even = {_mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16))};
  *odd = {_mm512_castsi512_ps(_mm512_and_si512(pairs, _mm512_set1_epi32(~0xffff)))};
}
inline void BroadcastPair(const Bf16* p, F32x16* even, F32x16* odd) {
  int32_t bits;
  __builtin_memcpy(&bits, p, sizeof(bits));
  const __m512i pair = _mm512_set1_epi32(bits);
  *even = {_mm512_castsi512_ps(_mm512_slli_epi32(pair, 16))};
  *odd = {_mm512_castsi512_ps(_mm512_and_si512(pair, _mm512_set1_epi32(~0xffff)))};
}
inline void Store(float* p, F32x16 a) { _mm512_storeu_ps(p, a.v); }
inline void Store(Bf16* p, F32x16 a) {  // The lanes must be bf16 values (RoundBf16).
  const __m512i high = _mm512_srli_epi32(_mm512_castps_si512(a.v), 16);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtepi32_epi16(high));
}
inline F32x16 Add(F32x16 a, F32x16 b) { return {_mm512_add_ps(a.v, b.v)}; }
inline F32x16 Sub(F32x16 a, F32x16 b) { return {_mm512_sub_ps(a.v, b.v)}; }
inline F32x16 Mul(F32x16 a, F32x16 b) { return {_mm512_mul_ps(a.v, b.v)}; }
inline F32x16 Div(F32x16 a, F32x16 b) { return {_mm512_div_ps(a.v, b.v)}; }
// a * b + c
inline F32x16 MulAdd(F32x16 a, F32x16 b, F32x16 c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
// The second operand where either is NaN.
inline F32x16 Max(F32x16 a, F32x16 b) { return {_mm512_max_ps(a.v, b.v)}; }
inline F32x16 Min(F32x16 a, F32x16 b) { return {_mm512_min_ps(a.v, b.v)}; }
// a < b ? x : y; false where either is NaN.
inline F32x16 SelectLess(F32x16 a, F32x16 b, F32x16 x, F32x16 y) {
  return {_mm512_mask_blend_ps(_mm512_cmp_ps_mask(a.v, b.v, _CMP_LT_OQ), y.v, x.v)};
}
inline F32x16 RoundToInteger(F32x16 a) {
  return {_mm512_roundscale_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}
// a * 2^n for an integer n in [-126, 127].
inline F32x16 MulPowerOfTwo(F32x16 a, F32x16 n) { return {_mm512_scalef_ps(a.v, n.v)}; }
// To the nearest bf16 value, ties to even; NaN stays NaN.
inline F32x16 RoundBf16(F32x16 a) {
  const __m512i bits = _mm512_castps_si512(a.v);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  const __m512i bias = _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff));
  const __m512i rounded =
      _mm512_and_si512(_mm512_add_epi32(bits, bias), _mm512_set1_epi32(~0xffff));
  const __m512i quiet = _mm512_and_si512(_mm512_or_si512(bits, _mm512_set1_epi32(0x400000)),
                                         _mm512_set1_epi32(~0xffff));
  const __mmask16 nan = _mm512_cmp_ps_mask(a.v, a.v, _CMP_UNORD_Q);
  return {_mm512_castsi512_ps(_mm512_mask_blend_epi32(nan, rounded, quiet))};
}
// Lanes 0..7 plus or max lanes 8..15.
inline __m256 HighHalf(F32x16 a) {
  return _mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(a.v), 1));
}
inline __m256 FoldAdd(F32x16 a) { return _mm256_add_ps(_mm512_castps512_ps256(a.v), HighHalf(a)); }
inline __m256 FoldMax(F32x16 a) { return _mm256_max_ps(_mm512_castps512_ps256(a.v), HighHalf(a)); }

#elif defined(__AVX2__)

struct F32x16 {
  __m256 lo, hi;
};

inline F32x16 Zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
inline F32x16 Set1(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
inline F32x16 Load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
inline __m256 LoadHalf(const Bf16* p) {
  const __m128i raw = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(raw), 16));
}
inline F32x16 Load(const Bf16* p) { return {LoadHalf(p), LoadHalf(p + 8)}; }
inline F32x16 Load(const F16* p) {
  const auto* raw = reinterpret_cast<const __m128i*>(p);
  return {_mm256_cvtph_ps(_mm_loadu_si128(raw)), _mm256_cvtph_ps(_mm_loadu_si128(raw + 1))};
}
inline void WidenPairs(__m256i pairs, __m256* even, __m256* odd) {
  *even = _mm256_castsi256_ps(_mm256_slli_epi32(pairs, 16));
  *odd = _mm256_castsi256_ps(_mm256_and_si256(pairs, _mm256_set1_epi32(~0xffff)));
}
// Of sixteen pairs, or of one in all lanes.
inline void LoadPairs(const Bf16* p, F32x16* even, F32x16* odd) {
  const auto* raw = reinterpret_cast<const __m256i*>(p);
  WidenPairs(_mm256_loadu_si256(raw), &even->lo, &odd->lo);
  WidenPairs(_mm256_loadu_si256(raw + 1), &even->hi, &odd->hi);
}
inline void BroadcastPair(const Bf16* p, F32x16* even, F32x16* odd) {
  int32_t bits;
  __builtin_memcpy(&bits, p, sizeof(bits));
  WidenPairs(_mm256_set1_epi32(bits), &even->lo, &odd->lo);
  even->hi = even->lo;
  odd->hi = odd->lo;
}
inline void Store(float* p, F32x16 a) {
  _mm256_storeu_ps(p, a.lo);
  _mm256_storeu_ps(p + 8, a.hi);
}
inline void Store(Bf16* p, F32x16 a) {  // The lanes must be bf16 values (RoundBf16).
  const __m256i lo = _mm256_srli_epi32(_mm256_castps_si256(a.lo), 16);
  const __m256i hi = _mm256_srli_epi32(_mm256_castps_si256(a.hi), 16);
  const __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(lo, hi), 0xd8);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), packed);
}
inline F32x16 Add(F32x16 a, F32x16 b) {
  return {_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)};
}
inline F32x16 Sub(F32x16 a, F32x16 b) {
  return {_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)};
}
inline F32x16 Mul(F32x16 a, F32x16 b) {
  return {_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)};
}
inline F32x16 Div(F32x16 a, F32x16 b) {
  return {_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi)};
}
// a * b + c
inline F32x16 MulAdd(F32x16 a, F32x16 b, F32x16 c) {
  return {_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
}
// The second operand where either is NaN.
inline F32x16 Max(F32x16 a, F32x16 b) {
  return {_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi)};
}
inline F32x16 Min(F32x16 a, F32x16 b) {
  return {_mm256_min_ps(a.lo, b.lo), _mm256_min_ps(a.hi, b.hi)};
}
// a < b ? x : y; false where either is NaN.
inline F32x16 SelectLess(F32x16 a, F32x16 b, F32x16 x, F32x16 y) {
  return {_mm256_blendv_ps(y.lo, x.lo, _mm256_cmp_ps(a.lo, b.lo, _CMP_LT_OQ)),
          _mm256_blendv_ps(y.hi, x.hi, _mm256_cmp_ps(a.hi, b.hi, _CMP_LT_OQ))};
}
inline F32x16 RoundToInteger(F32x16 a) {
  constexpr int kMode = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
  return {_mm256_round_ps(a.lo, kMode), _mm256_round_ps(a.hi, kMode)};
}
inline __m256 PowerOfTwo(__m256 n) {
  const __m256i biased = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
  return _mm256_castsi256_ps(_mm256_slli_epi32(biased, 23));
}
// a * 2^n for an integer n in [-126, 127].
inline F32x16 MulPowerOfTwo(F32x16 a, F32x16 n) {
  return Mul(a, {PowerOfTwo(n.lo), PowerOfTwo(n.hi)});
}
inline __m256 RoundBf16(__m256 a) {
  const __m256i bits = _mm256_castps_si256(a);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const __m256i bias = _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff));
  const __m256i mask = _mm256_set1_epi32(~0xffff);
  const __m256i rounded = _mm256_and_si256(_mm256_add_epi32(bits, bias), mask);
  const __m256i quiet = _mm256_and_si256(_mm256_or_si256(bits, _mm256_set1_epi32(0x400000)), mask);
  return _mm256_blendv_ps(_mm256_castsi256_ps(rounded), _mm256_castsi256_ps(quiet),
                          _mm256_cmp_ps(a, a, _CMP_UNORD_Q));
}
// To the nearest bf16 value, ties to even; NaN stays NaN.
inline F32x16 RoundBf16(F32x16 a) { return {RoundBf16(a.lo), RoundBf16(a.hi)}; }
// Lanes 0..7 plus or max lanes 8..15.
inline __m256 FoldAdd(F32x16 a) { return _mm256_add_ps(a.lo, a.hi); }
inline __m256 FoldMax(F32x16 a) { return _mm256_max_ps(a.lo, a.hi); }

#else

struct F32x16 {
  float v[kLanes];
};

inline uint32_t BitsOf(float x) {
  uint32_t bits;
  __builtin_memcpy(&bits, &x, sizeof(bits));
  return bits;
}
inline float FloatOf(uint32_t bits) {
  float x;
  __builtin_memcpy(&x, &bits, sizeof(x));
  return x;
}

template <typename Fn>
inline F32x16 PerLane(Fn fn) {
  F32x16 r;
  for (int i = 0; i < kLanes; ++i) r.v[i] = fn(i);
  return r;
}

inline F32x16 Zero() {
  return PerLane([](int) { return 0.0f; });
}
inline F32x16 Set1(float x) {
  return PerLane([x](int) { return x; });
}
inline F32x16 Load(const float* p) {
  return PerLane([p](int i) { return p[i]; });
}
inline F32x16 Load(const Bf16* p) {
  return PerLane([p](int i) { return FloatOf(uint32_t{p[i].bits} << 16); });
}
inline float HalfToFloat(uint32_t bits) {
  const uint32_t sign = (bits & 0x8000u) << 16;
  const uint32_t exponent = (bits >> 10) & 0x1fu;
  const uint32_t mantissa = bits & 0x3ffu;
  if (exponent == 0) {
    return FloatOf(sign | BitsOf(static_cast<float>(mantissa) * 0x1p-24f));
  }
  if (exponent == 31) {
    return FloatOf(sign | 0x7f800000u | (mantissa == 0 ? 0 : 0x400000u) | (mantissa << 13));
  }
  return FloatOf(sign | ((exponent + 112) << 23) | (mantissa << 13));
}
inline F32x16 Load(const F16* p) {
  return PerLane([p](int i) { return HalfToFloat(p[i].bits); });
}
// Of sixteen pairs, or of one in all lanes.
inline void LoadPairs(const Bf16* p, F32x16* even, F32x16* odd) {
  *even = PerLane([p](int i) { return FloatOf(uint32_t{p[2 * i].bits} << 16); });
  *odd = PerLane([p](int i) { return FloatOf(uint32_t{p[2 * i + 1].bits} << 16); });
}
inline void BroadcastPair(const Bf16* p, F32x16* even, F32x16* odd) {
  *even = Set1(FloatOf(uint32_t{p[0].bits} << 16));
  *odd = Set1(FloatOf(uint32_t{p[1].bits} << 16));
}
inline void Store(float* p, const F32x16& a) {
  for (int i = 0; i < kLanes; ++i) p[i] = a.v[i];
}
inline void Store(Bf16* p, const F32x16& a) {  // The lanes must be bf16 values (RoundBf16).
  for (int i = 0; i < kLanes; ++i) p[i].bits = static_cast<uint16_t>(BitsOf(a.v[i]) >> 16);
}
inline F32x16 Add(const F32x16& a, const F32x16& b) {
  return PerLane([&](int i) { return a.v[i] + b.v[i]; });
}
inline F32x16 Sub(const F32x16& a, const F32x16& b) {
  return PerLane([&](int i) { return a.v[i] - b.v[i]; });
}
inline F32x16 Mul(const F32x16& a, const F32x16& b) {
  return PerLane([&](int i) { return a.v[i] * b.v[i]; });
}
inline F32x16 Div(const F32x16& a, const F32x16& b) {
  return PerLane([&](int i) { return a.v[i] / b.v[i]; });
}
// a * b + c
inline F32x16 MulAdd(const F32x16& a, const F32x16& b, const F32x16& c) {
  return PerLane([&](int i) { return a.v[i] * b.v[i] + c.v[i]; });
}
// The second operand where either is NaN.
inline F32x16 Max(const F32x16& a, const F32x16& b) {
  return PerLane([&](int i) { return a.v[i] > b.v[i] ? a.v[i] : b.v[i]; });
}
inline F32x16 Min(const F32x16& a, const F32x16& b) {
  return PerLane([&](int i) { return a.v[i] < b.v[i] ? a.v[i] : b.v[i]; });
}
// a < b ? x : y; false where either is NaN.
inline F32x16 SelectLess(const F32x16& a, const F32x16& b, const F32x16& x, const F32x16& y) {
  return PerLane([&](int i) { return a.v[i] < b.v[i] ? x.v[i] : y.v[i]; });
}
// For |a| < 2^22.
inline F32x16 RoundToInteger(const F32x16& a) {
  return PerLane([&](int i) { return (a.v[i] + 0x1.8p23f) - 0x1.8p23f; });
}
// a * 2^n for an integer n in [-126, 127].
inline F32x16 MulPowerOfTwo(const F32x16& a, const F32x16& n) {
  // Adding 127 * 2^0 in the mantissa of 2^23 avoids the undefined conversion of NaN to an integer.
  return PerLane(
      [&](int i) { return a.v[i] * FloatOf((BitsOf(n.v[i] + (0x1p23f + 127.0f))) << 23); });
}
// To the nearest bf16 value, ties to even; NaN stays NaN.
inline F32x16 RoundBf16(const F32x16& a) {
  return PerLane([&](int i) {
    const uint32_t bits = BitsOf(a.v[i]);
    const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) & 0xffff0000u;
    const bool nan = (bits & 0x7fffffffu) > 0x7f800000u;
    return FloatOf(nan ? (bits | 0x400000u) & 0xffff0000u : rounded);
  });
}

#endif

inline void BroadcastPair(const float* p, F32x16* even, F32x16* odd) {
  *even = Set1(p[0]);
  *odd = Set1(p[1]);
}

#if defined(__AVX2__)

// The sum of the lanes in one fixed order: i with i + 8, then + 4, then + 2, then + 1.
inline float ReduceAdd(F32x16 a) {
  const __m256 eight = FoldAdd(a);
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}
// ReduceAdd of four values, to out[0..3]: the same order, with a third of the shuffles.
inline void ReduceAdd4(F32x16 a, F32x16 b, F32x16 c, F32x16 d, float* out) {
  const __m256 a8 = FoldAdd(a), b8 = FoldAdd(b), c8 = FoldAdd(c), d8 = FoldAdd(d);
  const __m256 ac =
      _mm256_add_ps(_mm256_permute2f128_ps(a8, c8, 0x20), _mm256_permute2f128_ps(a8, c8, 0x31));
  const __m256 bd =
      _mm256_add_ps(_mm256_permute2f128_ps(b8, d8, 0x20), _mm256_permute2f128_ps(b8, d8, 0x31));
  // Per half: lanes 0..3 of a (c) and of b (d). i + 2:
  const __m256 two =
      _mm256_add_ps(_mm256_shuffle_ps(ac, bd, 0x44), _mm256_shuffle_ps(ac, bd, 0xee));
  // Per half: a0 a1 b0 b1. i + 1:
  const __m256 one =
      _mm256_add_ps(_mm256_shuffle_ps(two, two, 0x88), _mm256_shuffle_ps(two, two, 0xdd));
  const __m128 low = _mm256_castps256_ps128(one);
  const __m128 high = _mm256_extractf128_ps(one, 1);
  _mm_storeu_ps(out, _mm_movelh_ps(low, high));
}
inline float ReduceMax(F32x16 a) {
  const __m256 eight = FoldMax(a);
  const __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}

#else

// The sum of the lanes in one fixed order: i with i + 8, then + 4, then + 2, then + 1.
inline float ReduceAdd(F32x16 a) {
  for (int half = kLanes / 2; half > 0; half /= 2) {
    for (int i = 0; i < half; ++i) a.v[i] = a.v[i] + a.v[i + half];
  }
  return a.v[0];
}
// ReduceAdd of four values, to out[0..3].
inline void ReduceAdd4(const F32x16& a, const F32x16& b, const F32x16& c, const F32x16& d,
                       float* out) {
  out[0] = ReduceAdd(a);
  out[1] = ReduceAdd(b);
  out[2] = ReduceAdd(c);
  out[3] = ReduceAdd(d);
}
inline float ReduceMax(F32x16 a) {
  for (int half = kLanes / 2; half > 0; half /= 2) {
    for (int i = 0; i < half; ++i) a.v[i] = a.v[i] > a.v[i + half] ? a.v[i] : a.v[i + half];
  }
  return a.v[0];
}

#endif

// The first n < 16 elements, then zeros. Reads nothing beyond them.
#if defined(__AVX512F__)
inline __mmask16 FirstLanes(int64_t n) { return static_cast<__mmask16>((1u << n) - 1); }
inline F32x16 LoadPartial(const float* p, int64_t n) {
  return {_mm512_maskz_loadu_ps(FirstLanes(n), p)};
}
inline F32x16 LoadPartial(const Bf16* p, int64_t n) {
  const __m256i raw = _mm256_maskz_loadu_epi16(FirstLanes(n), p);
  return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(raw), 16))};
}
inline F32x16 LoadPartial(const F16* p, int64_t n) {
  return {_mm512_cvtph_ps(_mm256_maskz_loadu_epi16(FirstLanes(n), p))};
}
#else
template <typename T>
inline F32x16 LoadPartial(const T* p, int64_t n) {
  T padded[kLanes] = {};
  __builtin_memcpy(padded, p, static_cast<uint64_t>(n) * sizeof(T));
  return Load(padded);
}
#endif
// The first n < 16 lanes. Writes nothing beyond them.
template <typename T>
inline void StorePartial(T* p, F32x16 a, int64_t n) {
  T padded[kLanes];
  Store(padded, a);
  __builtin_memcpy(p, padded, static_cast<uint64_t>(n) * sizeof(T));
}

inline constexpr float kExpLow = -87.3f;
inline constexpr float kExpHigh = 88.3f;

// e^x within 2 ulp for x in [kExpLow, kExpHigh].
inline F32x16 ExpInRange(F32x16 x) {
  const F32x16 n = RoundToInteger(Mul(x, Set1(1.44269504f)));  // log2(e)
  // ln 2 in two parts, of which n times the first is exact.
  F32x16 r = MulAdd(n, Set1(-0.693359375f), x);
  r = MulAdd(n, Set1(2.12194440e-4f), r);
  // (e^r - 1 - r) / r^2 on |r| <= ln(2) / 2: the classic single-precision minimax coefficients.
  F32x16 p = Set1(1.9875691500e-4f);
  p = MulAdd(p, r, Set1(1.3981999507e-3f));
  p = MulAdd(p, r, Set1(8.3334519073e-3f));
  p = MulAdd(p, r, Set1(4.1665795894e-2f));
  p = MulAdd(p, r, Set1(1.6666665459e-1f));
  p = MulAdd(p, r, Set1(5.0000001201e-1f));
  p = Add(MulAdd(p, Mul(r, r), r), Set1(1.0f));
  return MulPowerOfTwo(p, n);
}

// e^x within 2 ulp for x in [kExpLow, kExpHigh]; 0 below, +Inf above, NaN for NaN.
inline F32x16 Exp(F32x16 x) {
  const F32x16 low = Set1(kExpLow), high = Set1(kExpHigh);
  const F32x16 y = ExpInRange(Max(low, Min(high, x)));
  return SelectLess(x, low, Zero(), SelectLess(high, x, Set1(__builtin_inff()), y));
}

// Exp(x) where no x is above 0.
inline F32x16 ExpOfNegative(F32x16 x) {
  const F32x16 low = Set1(kExpLow);
  return SelectLess(x, low, Zero(), ExpInRange(Max(low, x)));
}

// x / (1 + e^-x)
inline F32x16 Silu(F32x16 x) { return Div(x, Add(Set1(1.0f), Exp(Sub(Zero(), x)))); }

}  // namespace lynx::kernels::LYNX_KERNEL_ISA
