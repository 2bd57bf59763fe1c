#pragma once

#include "kernels/attention/paged_attention_args.h"
#include "kernels/core/isa.h"

namespace lynx::kernels::internal {
void PagedAttentionReference(const PagedAttentionArgs& args);
}  // namespace lynx::kernels::internal

// Rows [begin, end), the query heads of one KV head.
LYNX_KERNEL_BODY(void, PagedAttentionRows, const PagedAttentionArgs& args, int64_t begin,
                 int64_t end, int64_t kv_head)
