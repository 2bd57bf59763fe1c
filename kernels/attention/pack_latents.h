#pragma once

// For the bodies of LatentAttention with bf16 products only: latents with their tokens in pairs.

#include "kernels/attention/pack_values.h"
#include "kernels/attention/split_latents.h"

namespace lynx::kernels::LYNX_KERNEL_ISA {

// Packs dimensions [d, d + 32) of the first `tokens` tokens, and zeros up to a whole step, as
// PackStep() has them: [kSplitTokens / 32] of kPackedStep. So few, that they stay in the first
// cache for all queries.
inline void PackLatents(const SplitLatents<Bf16>& latents, int tokens, int64_t width, int64_t d,
                        Bf16 (*packed)[kPackedStep]) {
  const __m512i zero = _mm512_setzero_si512();
  for (int t = 0; t < DepthSteps(tokens) * kDepth; t += 2) {
    __m512i a = zero, b = zero;
    if (t < tokens) {
      const Bf16* token = latents.block[t / kLanes] + t % kLanes * width + d;
      a = _mm512_loadu_si512(token);
      if (t + 1 < tokens) b = _mm512_loadu_si512(token + width);
    }
    Bf16* to = packed[t / kDepth] + t % kDepth / 2 * kPairRow;
    _mm512_store_si512(to, _mm512_unpacklo_epi16(a, b));
    _mm512_store_si512(to + kLanes * kPairRow, _mm512_unpackhi_epi16(a, b));
  }
}

// The share of the next split that falls to dimensions [d, d + 32) of latent_dim.
inline void PrefetchStep(const SplitLatents<Bf16>& next, int64_t width, int64_t d,
                         int64_t latent_dim) {
  const auto begin = static_cast<int>(next.blocks * d / latent_dim);
  const auto end = static_cast<int>(next.blocks * (d + kDepth) / latent_dim);
  for (int b = begin; b < end; ++b) Prefetch(next.block[b], kAttentionBlockTokens * width);
}

}  // namespace lynx::kernels::LYNX_KERNEL_ISA
