#pragma once

// For the bodies of LatentAttention only: the tokens of a split.

#include "kernels/attention/split_softmax.h"

namespace lynx::kernels::LYNX_KERNEL_ISA {

template <typename T>
struct SplitLatents {
  int blocks = 0;                // Those that hold a token somebody attends to.
  const T* block[kSplitBlocks];  // Each [16, latent_dim + rope_dim].
};

}  // namespace lynx::kernels::LYNX_KERNEL_ISA
