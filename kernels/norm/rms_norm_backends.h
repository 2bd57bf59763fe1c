#pragma once

#include "kernels/core/isa.h"
#include "kernels/norm/rms_norm_args.h"

namespace lynx::kernels::internal {
void RmsNormReference(const RmsNormArgs& args);
}  // namespace lynx::kernels::internal

// Rows [begin, end).
LYNX_KERNEL_BODY(void, RmsNormRows, const RmsNormArgs& args, int64_t begin, int64_t end)
