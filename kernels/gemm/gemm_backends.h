#pragma once

#include "kernels/core/isa.h"
#include "kernels/gemm/gemm_args.h"

namespace lynx::kernels::internal {
void GemmReference(const GemmArgs& args);
}  // namespace lynx::kernels::internal

// Columns [begin, end) of y, all rows.
LYNX_KERNEL_BODY(void, GemmColumns, const GemmArgs& args, int64_t begin, int64_t end)
