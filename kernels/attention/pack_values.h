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

// As the products want V: [head_dim / 32][kSplitTokens / 32][2][16 pairs][16 dimensions][2 tokens].
// The dimensions of the two tiles of a step are shuffled; Unshuffle() puts sums in order.
struct alignas(64) PackedValues {
  Bf16 data[kMaxHeadDim / kDepth][kSplitTokens / kDepth][kPackedStep];
};

// Steps of kDepth tokens that hold `tokens`.
inline int DepthSteps(int tokens) { return (tokens + kDepth - 1) / kDepth; }

// Packs the first `tokens` tokens, and zeros up to a whole step.
inline void PackValues(const SplitKv<Bf16>& kv, int tokens, int64_t head_dim,
                       const SplitKv<Bf16>& next, PackedValues* packed) {
  for (int t = 0; t < DepthSteps(tokens) * kDepth; t += 2) {
    const int in_block = t % kAttentionBlockTokens;
    const int block = t / kAttentionBlockTokens;
    if (block < next.blocks) Prefetch(next.k[block] + in_block * head_dim, 2 * head_dim);
    const Bf16* first = t < tokens ? kv.v[block] + in_block * head_dim : nullptr;
    const Bf16* second = t + 1 < tokens ? first + head_dim : nullptr;
    Bf16* to = packed->data[0][t / kDepth] + t % kDepth / 2 * kPairRow;
    for (int64_t d = 0; d < head_dim; d += kDepth) {
      const __m512i zero = _mm512_setzero_si512();
      const __m512i a = first != nullptr ? _mm512_loadu_si512(first + d) : zero;
      const __m512i b = second != nullptr ? _mm512_loadu_si512(second + d) : zero;
      _mm512_store_si512(to, _mm512_unpacklo_epi16(a, b));
      _mm512_store_si512(to + kLanes * kPairRow, _mm512_unpackhi_epi16(a, b));
      to += kSplitTokens / kDepth * kPackedStep;
    }
  }
  for (int b = DepthSteps(tokens) * kDepth / kAttentionBlockTokens; b < next.blocks; ++b) {
    Prefetch(next.k[b], kAttentionBlockTokens * head_dim);
  }
}

// Stores 32 sums, given those of the two tiles of a step, in the order of their dimensions.
inline void Unshuffle(F32x16 low, F32x16 high, float* to) {
  const __m512i begin = _mm512_setr_epi32(0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23);
  const __m512i end = _mm512_add_epi32(begin, _mm512_set1_epi32(8));
  _mm512_storeu_ps(to, _mm512_permutex2var_ps(low.v, begin, high.v));
  _mm512_storeu_ps(to + kLanes, _mm512_permutex2var_ps(low.v, end, high.v));
}

// Sixteen dimensions of a query as bf16.
inline __m256i RoundedQuery(const float* q) {
  return reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(_mm512_loadu_ps(q)));
}

}  // namespace lynx::kernels::LYNX_KERNEL_ISA
