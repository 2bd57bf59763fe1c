#pragma once

#include "kernels/core/isa.h"
#include "kernels/moe/expert_ffn_args.h"

namespace lynx::kernels::internal {
void ExpertFfnReference(const ExpertFfnArgs& args);

// The entries of one expert: see ExpertFfnWorkspace.
struct ExpertEntries {
  int64_t expert = 0;
  int64_t first = 0;               // Index of the first entry.
  int64_t count = 0;               // > 0
  const int32_t* order = nullptr;  // [all entries]
  float* inner = nullptr;          // [all entries, intermediate]
  float* outer = nullptr;          // [rows * top_k, hidden]
};
}  // namespace lynx::kernels::internal

// inner columns [begin, end) of one expert.
LYNX_KERNEL_BODY(void, ExpertFfnInner, const ExpertFfnArgs& args,
                 const internal::ExpertEntries& entries, int64_t begin, int64_t end)
// outer columns [begin, end) of one expert.
LYNX_KERNEL_BODY(void, ExpertFfnOuter, const ExpertFfnArgs& args,
                 const internal::ExpertEntries& entries, int64_t begin, int64_t end)
// Adds the weighted ranks of rows [begin, end) to y.
LYNX_KERNEL_BODY(void, ExpertFfnCombine, const ExpertFfnArgs& args, const float* outer,
                 int64_t begin, int64_t end)
