#pragma once

// For the bodies of PagedAttention only: K and V of one split.

#include "kernels/attention/paged_attention_backends.h"
#include "kernels/core/fixed_rows.h"
#include "kernels/core/simd.h"

namespace lynx::kernels::LYNX_KERNEL_ISA {

static_assert(kAttentionBlockTokens == kLanes, "one lane per token of a block");

// What stands for blocks that nobody attends to.
alignas(64) inline constexpr float kZeroBlock[kAttentionBlockTokens * kMaxHeadDim] = {};

// Of KV heads that lie together.
template <typename T>
struct SplitKv {
  const T* K(int block, int head) const { return At(k, block, head); }
  const T* V(int block, int head) const { return At(v, block, head); }
  const T* At(const T* const* base, int block, int head) const {
    if (block < first) return reinterpret_cast<const T*>(kZeroBlock);
    return base[block] + head * head_elements;
  }

  // Blocks [first, blocks) hold tokens that somebody attends to. Those before may be of anybody's,
  // so zeros are read in their place, at weight zero: the order of sums is the same with them.
  int first = 0;
  int blocks = 0;
  int64_t head_elements = 0;  // Of a head in a block.
  const T* k[kSplitBlocks];   // Each [heads, 16, head_dim].
  const T* v[kSplitBlocks];
};

// K of some heads is read block by block, then their scores become weights, then V is read block by
// block: so a block is read in one piece. Blocks lie anywhere, though, and the hardware sees no
// pattern in them: meanwhile those that come BlocksAhead() later are fetched.
//
// Enough for memory to be busy while the scores of `queries` queries of a head become weights.
inline int BlocksAhead(int queries) { return queries < 2 ? 2 : queries < 8 ? queries / 2 * 2 : 8; }

// What to fetch while K, or V, of `block` is read; `next` is read after V of `kv`. Where there is
// nothing, something that is in cache already.
template <typename T>
inline const T* AheadOfK(const SplitKv<T>& kv, int blocks_ahead, int block, int head) {
  return kv.K(block + blocks_ahead < kv.blocks ? block + blocks_ahead : block, head);
}
template <typename T>
inline const T* AheadOfV(const SplitKv<T>& kv, const SplitKv<T>& next, int blocks_ahead, int block,
                         int head) {
  const int ahead = block + blocks_ahead;
  if (ahead < kv.blocks) return kv.V(ahead, head);
  return ahead - kv.blocks < next.blocks ? next.K(ahead - kv.blocks, head) : kv.V(block, head);
}

// The first n elements, or sixteen if n is larger.
template <typename T>
inline F32x16 LoadUpTo(const T* p, int64_t n) {
  return n >= kLanes ? Load(p) : LoadPartial(p, n);
}

template <typename T>
inline void Prefetch(const T* p, int64_t elements) {
  const auto* byte = reinterpret_cast<const char*>(p);
  const auto* end = reinterpret_cast<const char*>(p + elements);
  for (; byte < end; byte += 64) __builtin_prefetch(byte, 0, 2);
}

// fn<N>(i) for queries [i, i + N), N at most kMost, until `count` have had their turn.
template <int kMost, typename Fn>
inline void ForGroups(int count, const Fn& fn) {
  for (int i = 0; i < count; i += kMost) {
    WithFixedRows<kMost>(count - i < kMost ? count - i : kMost,
                         [&]<int N>() { fn.template operator()<N>(i); });
  }
}

// Stores a weight in the type that multiplies V; returns what is stored.
inline F32x16 StoreWeight(float* to, F32x16 weight) {
  Store(to, weight);
  return weight;
}

}  // namespace lynx::kernels::LYNX_KERNEL_ISA
