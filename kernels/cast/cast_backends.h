#pragma once

#include "kernels/cast/cast_args.h"
#include "kernels/core/isa.h"

namespace lynx::kernels::internal {
void CastReference(const CastArgs& args);
}  // namespace lynx::kernels::internal

// Rows [begin, end).
LYNX_KERNEL_BODY(void, CastRows, const CastArgs& args, int64_t begin, int64_t end)
