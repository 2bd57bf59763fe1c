#pragma once

#include "kernels/core/isa.h"
#include "kernels/kv/kv_write_args.h"

namespace lynx::kernels::internal {
void KvWriteReference(const KvWriteArgs& args);
void LatentWriteReference(const LatentWriteArgs& args);
}  // namespace lynx::kernels::internal

// Rows [begin, end).
LYNX_KERNEL_BODY(void, KvWriteRows, const KvWriteArgs& args, int64_t begin, int64_t end)
LYNX_KERNEL_BODY(void, LatentWriteRows, const LatentWriteArgs& args, int64_t begin, int64_t end)
