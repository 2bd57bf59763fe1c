#pragma once

#include "kernels/attention/paged_attention_args.h"
#include "kernels/core/isa.h"

namespace lynx::kernels {

// A sequence's tokens are taken in splits that begin at fixed positions. The sums of a split are
// made from nothing, and splits are merged in order: so the bits of a row are the same whoever
// computes which split.
inline constexpr int kSplitTokens = 256;
inline constexpr int kSplitBlocks = kSplitTokens / kAttentionBlockTokens;

// Queries of one KV head that share every token they load.
inline constexpr int kTileQueries = 32;

// Consecutive queries of consecutive rows that name the same blocks. With `group` query heads to a
// KV head, query i of the tile is head (first + i) % group of row `row` + (first + i) / group.
struct AttentionTile {
  int64_t row = 0;
  int64_t first = 0;
  int32_t queries = 0;      // [1, kTileQueries]
  int32_t first_split = 0;  // Those that any of its queries attends to ...
  int32_t splits = 0;       // ... are this many, from that one on.
  // KV heads to take together, so that a block is read in one piece: as many as have room with
  // their queries, one where queries of several rows do not all see the same tokens.
  int32_t heads_together = 0;
};

// What a query has of some tokens: the softmax-weighted mean of V is sum / (the lanes of total).
struct alignas(64) AttentionSums {
  float sum[kMaxHeadDim];  // [head_dim]
  float total[16];         // Of the weights; lane i has tokens i, i + 16, ...
  float largest;           // Of the scores; the weights are e^(score - largest).
};

// KV heads and splits of one tile.
struct AttentionItem {
  int64_t head_begin = 0;
  int64_t head_end = 0;
  int32_t split_begin = 0;
  int32_t split_end = 0;
};

// Splits of one query of a tile.
struct AttentionMerge {
  int64_t head = 0;   // A KV head, ...
  int32_t query = 0;  // ... and of its queries in the tile this one.
  int32_t split_begin = 0;
  int32_t split_end = 0;
  int64_t stride = 0;  // Between its sums in one split and in the next.
};

namespace internal {
void PagedAttentionReference(const PagedAttentionArgs& args);
}  // namespace internal
}  // namespace lynx::kernels

// The bodies with bf16 products take bf16 KV, bf16 compute and a head_dim that is a multiple of 32.
//
// Writes y where `sums` is null: the item then holds all splits of the tile. Else writes the sums
// of each of its splits and KV heads to sums[split][head][query].
LYNX_BF16_KERNEL_BODY(void, PagedAttentionItem, const PagedAttentionArgs& args,
                      const AttentionTile& tile, const AttentionItem& item, AttentionSums* sums)
// Adds the sums of some splits, of which the first begin at `sums`, to `into`: what the splits
// before have, which may be the first of them. Writes y after the tile's last split.
LYNX_BF16_KERNEL_BODY(void, PagedAttentionMerge, const PagedAttentionArgs& args,
                      const AttentionTile& tile, const AttentionMerge& merge,
                      const AttentionSums* sums, AttentionSums* into)
