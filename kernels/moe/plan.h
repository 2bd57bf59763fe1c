#pragma once

#include "absl/status/status.h"
#include "kernels/core/exec_context.h"
#include "kernels/moe/plan_args.h"  // IWYU pragma: export

namespace lynx::kernels {

// The plan of moe::Planner on a GPU, in four launches without waiting for the host. Rows may be
// anything, as there: the active set and the ids are the planner's bit for bit, weights and kept
// mass within 1e-6. Without Policy::ep_balance.
//
//   InvalidArgument    args breaks a bound above; nothing is written.
//   ResourceExhausted  less scratch memory than PlanScratchBytes().
//   Unavailable        ctx is not of a GPU: on CPUs common/moe plans.
//   Internal           as DeviceStatus().
absl::Status MakeDevicePlan(const PlanArgs& args, const ExecContext& ctx);

}  // namespace lynx::kernels
