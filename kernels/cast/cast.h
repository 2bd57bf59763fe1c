#pragma once

#include "absl/status/status.h"
#include "kernels/cast/cast_args.h"  // IWYU pragma: export
#include "kernels/core/exec_context.h"

namespace lynx::kernels {

// y does not overlap x; memory between its heads is not written. Rounds to nearest, ties to even.
// All back ends agree bit for bit (NaN aside, which stays NaN).
//
//   InvalidArgument  args breaks a bound above; y is untouched.
//   Unavailable      this machine cannot run ctx.
absl::Status Cast(const CastArgs& args, const ExecContext& ctx);

}  // namespace lynx::kernels
