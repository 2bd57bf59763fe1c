#include "common/moe/policy_ladder.h"

#include <cmath>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/status_macros.h"

namespace lynx::moe {
namespace {

// The point `share` of the way from one policy to another.
class Between {
 public:
  Between(const Policy& from, const Policy& to, double share)
      : from_(from), to_(to), share_(share) {}

  absl::Status Real(const char* name, double Policy::*field, double unset, Policy& out) const {
    if ((from_.*field == unset) != (to_.*field == unset)) return OneSided(name);
    out.*field = from_.*field + (to_.*field - from_.*field) * share_;
    return absl::OkStatus();
  }
  absl::Status Count(const char* name, int32_t Policy::*field, Policy& out) const {
    const int32_t from = from_.*field;
    const int32_t to = to_.*field;
    // Negative values are words, not numbers.
    if (from != to && (from < 0 || to < 0)) return OneSided(name);
    out.*field = static_cast<int32_t>(std::lround(from + (to - from) * share_));
    return absl::OkStatus();
  }

 private:
  absl::Status OneSided(const char* name) const {
    return absl::InvalidArgumentError(absl::StrCat("policies ", ToString(from_), " and ",
                                                   ToString(to_),
                                                   ": there is nothing between their ", name));
  }

  const Policy& from_;
  const Policy& to_;
  const double share_;
};

absl::StatusOr<Policy> PolicyBetween(const Policy& from, const Policy& to, double share) {
  const Between between(from, to, share);
  Policy policy = from;
  LYNX_RETURN_IF_ERROR(between.Real("alpha", &Policy::alpha, 0, policy));
  LYNX_RETURN_IF_ERROR(between.Count("beta", &Policy::beta, policy));
  LYNX_RETURN_IF_ERROR(between.Count("floor", &Policy::floor, policy));
  LYNX_RETURN_IF_ERROR(between.Count("k0", &Policy::k0, policy));
  LYNX_RETURN_IF_ERROR(between.Count("M", &Policy::experts, policy));
  LYNX_RETURN_IF_ERROR(between.Real("fraction", &Policy::fraction, 0, policy));
  LYNX_RETURN_IF_ERROR(between.Real("coverage", &Policy::coverage, 0, policy));
  LYNX_RETURN_IF_ERROR(between.Real("row_coverage", &Policy::row_coverage, 0, policy));
  LYNX_RETURN_IF_ERROR(between.Real("lambda", &Policy::lambda, -1, policy));
  return policy;
}

}  // namespace

absl::StatusOr<std::vector<Policy>> MakePolicyLadder(const Policy& gentlest, const Policy& harshest,
                                                     int32_t lossy_rungs) {
  LYNX_CHECK(lossy_rungs > 0);
  const auto wrong = [&](const char* what) {
    return absl::InvalidArgumentError(
        absl::StrCat("policies ", ToString(gentlest), " and ", ToString(harshest), ": ", what));
  };
  if (gentlest.kind != harshest.kind || gentlest.self_scaled != harshest.self_scaled) {
    return wrong("must be of one kind");
  }
  if (!gentlest.lossy() || gentlest.kind == Policy::Kind::kAuto) {
    return wrong("must be lossy, and not auto");
  }
  std::vector<Policy> ladder = {Policy{}};
  for (int32_t i = 0; i < lossy_rungs; ++i) {
    const double share = lossy_rungs == 1 ? 1 : static_cast<double>(i) / (lossy_rungs - 1);
    LYNX_ASSIGN_OR_RETURN(Policy policy, PolicyBetween(gentlest, harshest, share));
    if (policy != ladder.back()) ladder.push_back(policy);
  }
  return ladder;
}

}  // namespace lynx::moe
