#pragma once

// For the bodies of PagedAttention only: K and V of one KV head and split.

#include "kernels/attention/paged_attention_backends.h"
#include "kernels/core/fixed_rows.h"
#include "kernels/core/simd.h"

namespace lynx::kernels::LYNX_KERNEL_ISA {

static_assert(kAttentionBlockTokens == kLanes, "one lane per token of a block");

template <typename T>
struct SplitKv {
  int blocks = 0;            // Those that hold a token somebody attends to.
  const T* k[kSplitBlocks];  // Each [16, head_dim].
  const T* v[kSplitBlocks];
};

// Blocks lie anywhere in memory, and the hardware sees no pattern in them: K is read while V of the
// same split is fetched, V while K of the next split is.
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
inline F32x16 StoreWeight(Bf16* to, F32x16 weight) {
  const F32x16 rounded = RoundBf16(weight);
  Store(to, rounded);
  return rounded;
}

}  // namespace lynx::kernels::LYNX_KERNEL_ISA
