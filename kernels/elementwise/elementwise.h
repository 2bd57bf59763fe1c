#pragma once

#include "absl/status/status.h"
#include "kernels/core/exec_context.h"
#include "kernels/elementwise/elementwise_args.h"  // IWYU pragma: export

namespace lynx::kernels {

// Memory between rows is not written. A row's bits depend on that row alone; NaN or Inf in a row
// stays in that row. Clip and GatherRows have the same bits on all back ends; Grow and GateWeights
// are within ReductionTolerance(1) (tests/support/tolerance.h) of kReference.
//
//   InvalidArgument  args breaks a bound; nothing is written.
//   Unavailable      this machine cannot run ctx.
absl::Status Clip(const ClipArgs& args, const ExecContext& ctx);
absl::Status Grow(const GrowArgs& args, const ExecContext& ctx);
absl::Status GateWeights(const GateWeightsArgs& args, const ExecContext& ctx);
absl::Status GatherRows(const GatherRowsArgs& args, const ExecContext& ctx);

}  // namespace lynx::kernels
