#pragma once

#include "kernels/gemm/gemm_args.h"

namespace lynx::kernels::internal {
void GemmReference(const GemmArgs& args);

// Element i of activations; for reference code.
float ActivationAt(const void* x, DType dtype, int64_t i);
}  // namespace lynx::kernels::internal
