#pragma once

#include "kernels/core/isa.h"
#include "kernels/rope/rope_args.h"

namespace lynx::kernels::internal {
void RopeReference(const RopeArgs& args);
}  // namespace lynx::kernels::internal

// Rows [begin, end).
LYNX_KERNEL_BODY(void, RopeRows, const RopeArgs& args, int64_t begin, int64_t end)
