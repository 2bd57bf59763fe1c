#pragma once

#include "absl/status/status.h"
#include "kernels/core/exec_context.h"
#include "kernels/norm/rms_norm_args.h"  // IWYU pragma: export

namespace lynx::kernels {

// A y of f32 may be x itself with equal strides (in place); any other overlap of x or gain with y
// is undefined. Memory between rows is not written.
//
// Numerics: without rounding kCpu agrees with kReference to within ReductionTolerance(hidden)
// (tests/support/tolerance.h). A row's bits depend on that row alone. NaN or Inf in a row stays in
// that row.
//
//   InvalidArgument  args breaks a bound above; y is untouched.
//   Unavailable      this machine cannot run ctx.
absl::Status RmsNorm(const RmsNormArgs& args, const ExecContext& ctx);

}  // namespace lynx::kernels
