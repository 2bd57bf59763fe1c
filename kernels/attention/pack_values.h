#pragma once

// For the bodies of PagedAttention with bf16 products only: V with its tokens in pairs.

#include "kernels/attention/split_kv.h"
#include "kernels/core/bf16_dot.h"

namespace lynx::kernels::LYNX_KERNEL_ISA {

// bf16 products walk tokens and dimensions in steps of this many; head_dim is a multiple of it.
inline constexpr int kDepth = 32;
// Elements of a packed panel row: sixteen dimensions of two tokens.
inline constexpr int kPairRow = 2 * kLanes;
// Two tiles of [16 token pairs][kPairRow].
inline constexpr int kPackedStep = 2 * kLanes * kPairRow;

// Steps of kDepth tokens that hold `tokens`.
inline int DepthSteps(int tokens) { return (tokens + kDepth - 1) / kDepth; }

// Packs kDepth dimensions, from d on, of the tokens of blocks b and b + 1 of a head: two tiles of
// sixteen rows, each row sixteen dimensions of two tokens. Which dimensions are in which tile,
// Unshuffle() knows. Tokens from `tokens` of the split on are zeros. Meanwhile fetches as much of
// what is read later.
inline void PackStep(const SplitKv<Bf16>& kv, const SplitKv<Bf16>& next, int blocks_ahead, int b,
                     int head, int64_t d, int tokens, int64_t head_dim, Bf16* to) {
  for (int end = b + 2; b < end; ++b) {
    const int block = b < kv.blocks ? b : kv.blocks - 1;
    const Bf16* v = kv.V(block, head) + d;
    const Bf16* ahead = AheadOfV(kv, next, blocks_ahead, block, head) + d;
    const int count = tokens - b * kLanes;
    for (int t = 0; t < kLanes; t += 2, to += kPairRow) {
      __m512i first = _mm512_setzero_si512();
      __m512i second = first;
      if (t < count) {
        Prefetch(ahead + t * head_dim, kDepth);
        Prefetch(ahead + (t + 1) * head_dim, kDepth);
        first = _mm512_loadu_si512(v + t * head_dim);
        if (t + 1 < count) second = _mm512_loadu_si512(v + (t + 1) * head_dim);
      }
      _mm512_store_si512(to, _mm512_unpacklo_epi16(first, second));
      _mm512_store_si512(to + kLanes * kPairRow, _mm512_unpackhi_epi16(first, second));
    }
  }
}

// Stores 32 sums, given those of the two tiles of a step, in the order of their dimensions.
inline void Unshuffle(F32x16 low, F32x16 high, float* to) {
  const __m512i begin = _mm512_setr_epi32(0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23);
  const __m512i end = _mm512_add_epi32(begin, _mm512_set1_epi32(8));
  _mm512_storeu_ps(to, _mm512_permutex2var_ps(low.v, begin, high.v));
  _mm512_storeu_ps(to + kLanes, _mm512_permutex2var_ps(low.v, end, high.v));
}

inline F32x16 StoreWeight(Bf16* to, F32x16 weight) {
  const auto rounded = reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(weight.v));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), rounded);
  return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(rounded), 16))};
}

// Sixteen dimensions of a query as bf16.
inline __m256i RoundedQuery(const float* q) {
  return reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(_mm512_loadu_ps(q)));
}

}  // namespace lynx::kernels::LYNX_KERNEL_ISA
