#pragma once

#include "absl/status/status.h"
#include "kernels/core/exec_context.h"
#include "kernels/gemm/gemm_args.h"  // IWYU pragma: export

namespace lynx::kernels {

// y overlaps neither x nor w. Memory between rows is not written. Each weight is read from memory
// once per call, however many rows there are.
//
// Numerics: each sum is within ReductionTolerance(in) * sum of |x * w| of kReference. A row's bits
// depend on that row and w alone. NaN or Inf in a row stays in that row.
//
//   InvalidArgument  args breaks a bound above; y is untouched.
//   Unavailable      this machine cannot run ctx.
absl::Status Gemm(const GemmArgs& args, const ExecContext& ctx);

}  // namespace lynx::kernels
