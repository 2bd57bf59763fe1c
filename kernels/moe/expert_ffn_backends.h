#pragma once

#include "kernels/core/isa.h"
#include "kernels/moe/expert_ffn_args.h"

namespace lynx::kernels::internal {
void ExpertFfnReference(const ExpertFfnArgs& args);
}  // namespace lynx::kernels::internal

// inner[r, i] = i < columns ? round(act(sum[r, i], sum[r, 16 + i])) : 0 for i < 16, where sum is
// the product of a panel plus its part of the expert's bias, which may be null, and inner has rows
// of args.x_dtype `stride` elements apart.
LYNX_KERNEL_BODY(void, ActivateGate, const ExpertFfnArgs& args, const float* product,
                 const float* bias, int64_t rows, int64_t columns, int64_t stride, void* inner)
// Adds the weighted ranks of rows [begin, end) to y. outer: [rows * top_k, hidden], `stride`
// elements apart.
LYNX_KERNEL_BODY(void, CombineRanks, const ExpertFfnArgs& args, const float* outer, int64_t stride,
                 int64_t begin, int64_t end)
