#include "common/model/device_policy.h"

#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace lynx::model {

absl::StatusOr<kernels::PlanPolicy> DevicePolicy(const moe::Policy& policy) {
  using From = moe::Policy::Kind;
  using To = kernels::PlanPolicy::Kind;
  kernels::PlanPolicy result;
  switch (policy.kind) {
    case From::kPrune:
      result.kind = To::kPrune;
      break;
    case From::kVote:
      result.kind = To::kVote;
      break;
    case From::kLynxCompat:
      result.kind = To::kLynxCompat;
      break;
    case From::kLynx:
      result.kind = To::kLynx;
      break;
    case From::kOea:
      result.kind = To::kOea;
      break;
    case From::kBudget:
      result.kind = To::kBudget;
      break;
    case From::kMarginal:
      result.kind = To::kMarginal;
      break;
    case From::kExact:
    case From::kAuto:
      return absl::InvalidArgumentError(
          absl::StrCat("policy ", moe::ToString(policy), " remaps no rows"));
  }
  if (policy.ep_balance >= 0) {
    return absl::UnimplementedError(
        absl::StrCat("policy ", moe::ToString(policy), ": plans on a GPU have no ep_balance"));
  }
  result.self_scaled = policy.self_scaled;
  result.beta = policy.beta == moe::Policy::kUnbounded ? kernels::PlanPolicy::kUnbounded
                                                       : std::max(policy.beta, 0);
  result.floor = policy.kept_ranks();
  result.k0 = std::max(policy.k0, 0);
  result.experts = std::max(policy.experts, 0);
  result.alpha = policy.alpha;
  result.fraction = policy.fraction;
  result.coverage = policy.coverage;
  result.row_coverage = policy.row_coverage;
  result.lambda = policy.lambda;
  return result;
}

}  // namespace lynx::model
