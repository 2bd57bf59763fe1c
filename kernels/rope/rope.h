#pragma once

#include "absl/status/status.h"
#include "kernels/core/exec_context.h"
#include "kernels/rope/rope_args.h"  // IWYU pragma: export

namespace lynx::kernels {

// Numerics: each result is within 2 float32 epsilons of |x[j]| + |x[j + h]| from kReference. A
// row's bits depend on that row alone.
//
//   InvalidArgument  args breaks a bound above (positions included); x is untouched.
//   Unavailable      this machine cannot run ctx.
absl::Status Rope(const RopeArgs& args, const ExecContext& ctx);

}  // namespace lynx::kernels
