#include "services/decode/policy/step_policy.h"

#include "absl/status/status.h"
#include "common/base/status_macros.h"
#include "common/moe/policy_ladder.h"
#include "common/moe/presets.h"

namespace lynx::decode {

StepPolicy::StepPolicy(const model::ModelSpec& spec, std::string_view model_name)
    : spec_(spec), model_name_(model_name) {}

absl::StatusOr<StepPolicy> StepPolicy::Create(std::string_view policy, const model::ModelSpec& spec,
                                              std::string_view model_name, bool has_auto) {
  StepPolicy made(spec, model_name);
  made.has_auto_ = has_auto;
  LYNX_ASSIGN_OR_RETURN(made.own_, made.Parse(policy));
  return made;
}

absl::StatusOr<moe::Policy> StepPolicy::Parse(std::string_view text) const {
  LYNX_ASSIGN_OR_RETURN(moe::Policy policy, moe::ParsePolicy(text));
  if (!policy.lossy()) return policy;
  const moe::ModelFacts facts = model::FactsOf(spec_, model_name_);
  if (facts.experts == 0) {
    return absl::InvalidArgumentError("this model has no experts to remap: it must be exact");
  }
  if (policy.kind == moe::Policy::Kind::kAuto) {
    if (has_auto_) return policy;
    return absl::InvalidArgumentError("policy auto needs the quality guard, which is off");
  }
  policy = moe::WithPreset(policy, facts);
  LYNX_RETURN_IF_ERROR(moe::CheckPolicy(policy, facts.experts, facts.top_k));
  return policy;
}

absl::StatusOr<std::optional<moe::Policy>> StepPolicy::Asked(std::string_view policy) const {
  if (policy.empty()) return std::nullopt;
  return Parse(policy);
}

const moe::Policy* StepPolicy::Choose(const std::optional<moe::Policy>& asked,
                                      const moe::Policy* automatic) const {
  const moe::Policy& policy = asked.has_value() ? *asked : own_;
  if (policy.kind == moe::Policy::Kind::kAuto) return automatic;
  return policy.lossy() || own_.lossy() ? &policy : nullptr;
}

absl::StatusOr<std::vector<moe::Policy>> StepPolicy::Ladder(std::string_view gentlest,
                                                            std::string_view harshest,
                                                            int32_t lossy_rungs) const {
  LYNX_ASSIGN_OR_RETURN(const moe::Policy from, Parse(gentlest));
  LYNX_ASSIGN_OR_RETURN(const moe::Policy to, Parse(harshest));
  return moe::MakePolicyLadder(from, to, lossy_rungs);
}

}  // namespace lynx::decode
