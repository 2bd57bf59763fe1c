#include "services/decode/policy/step_policy.h"

#include "absl/status/status.h"
#include "common/base/status_macros.h"
#include "common/moe/presets.h"

namespace lynx::decode {

StepPolicy::StepPolicy(const model::ModelSpec& spec, std::string_view model_name)
    : spec_(spec), model_name_(model_name) {}

absl::StatusOr<StepPolicy> StepPolicy::Create(std::string_view policy, const model::ModelSpec& spec,
                                              std::string_view model_name) {
  StepPolicy made(spec, model_name);
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
    return absl::InvalidArgumentError("policy auto needs a controller, which this node has not");
  }
  policy = moe::WithPreset(policy, facts);
  LYNX_RETURN_IF_ERROR(moe::CheckPolicy(policy, facts.experts, facts.top_k));
  return policy;
}

absl::StatusOr<std::optional<moe::Policy>> StepPolicy::Asked(std::string_view policy) const {
  if (policy.empty()) return std::nullopt;
  return Parse(policy);
}

const moe::Policy* StepPolicy::Choose(const std::optional<moe::Policy>& asked) const {
  if (asked.has_value()) return asked->lossy() || own_.lossy() ? &*asked : nullptr;
  return own_.lossy() ? &own_ : nullptr;
}

}  // namespace lynx::decode
