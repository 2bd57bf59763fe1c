#pragma once

#include "kernels/core/isa.h"
#include "kernels/moe/expert_ffn_args.h"

namespace lynx::kernels::internal {
void ExpertFfnReference(const ExpertFfnArgs& args);
}  // namespace lynx::kernels::internal

// inner[r, i] = i < columns ? round(silu(gate_up[r, i]) * gate_up[r, 16 + i]) : 0 for i < 16, where
// gate_up is the product of a panel and inner has rows of `dtype` `stride` elements apart.
LYNX_KERNEL_BODY(void, SwiGlu, const float* gate_up, int64_t rows, int64_t columns, DType dtype,
                 int64_t stride, void* inner)
// Adds the weighted ranks of rows [begin, end) to y. outer: [rows * top_k, hidden], `stride`
// elements apart.
LYNX_KERNEL_BODY(void, CombineRanks, const ExpertFfnArgs& args, const float* outer, int64_t stride,
                 int64_t begin, int64_t end)
