#pragma once

#include "kernels/attention/latent_attention_args.h"
#include "kernels/attention/paged_attention_backends.h"

namespace lynx::kernels {

inline constexpr int64_t kMaxLatentWidth = kMaxLatentDim + kMaxLatentRopeDim;

// What a query has of some tokens, as AttentionSums.
struct alignas(64) LatentSums {
  float sum[kMaxLatentDim];  // [latent_dim]
  float total[16];
  float largest;
};

namespace internal {
void LatentAttentionReference(const LatentAttentionArgs& args);
}  // namespace internal
}  // namespace lynx::kernels

// Tiles have the heads of a row for the group of a KV head. The bodies with bf16 products take bf16
// KV, bf16 compute, and a latent_dim and rope_dim that are multiples of 32.
//
// As PagedAttentionItem and PagedAttentionMerge; the KV head is 0.
LYNX_BF16_KERNEL_BODY(void, LatentAttentionItem, const LatentAttentionArgs& args,
                      const AttentionTile& tile, const AttentionItem& item, LatentSums* sums)
LYNX_BF16_KERNEL_BODY(void, LatentAttentionMerge, const LatentAttentionArgs& args,
                      const AttentionTile& tile, const AttentionMerge& merge,
                      const LatentSums* sums, LatentSums* into)
