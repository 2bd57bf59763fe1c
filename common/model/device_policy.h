#pragma once

#include "absl/status/statusor.h"
#include "common/moe/policy.h"
#include "kernels/moe/plan_args.h"

namespace lynx::model {

// A policy that passed CheckPolicy(), as plans on a GPU read it.
//   InvalidArgument  the kind does not remap rows: exact, or auto.
//   Unimplemented    it asks for what plans on a GPU do not do, which is ep_balance; names it.
absl::StatusOr<kernels::PlanPolicy> DevicePolicy(const moe::Policy& policy);

}  // namespace lynx::model
