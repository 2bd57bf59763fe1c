#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/moe/policy.h"
#include "common/moe/presets.h"

namespace lynx::cli {

struct EvalPolicy {
  std::string name;    // moe::ToString(policy)
  std::string family;  // Settings that one knob turns: "oea", "lynx alpha=3", "budget coverage".
  moe::Policy policy;
};

// Reads what --policies holds, already cut at every comma: parameters go to the policy before them,
// as in {"lynx:alpha=3", "beta=4", "exact"}. `all` stands for AllPolicies(). What a policy leaves
// unset comes from the model's preset; a policy named twice counts once.
//
//   InvalidArgument  an empty list, a policy that does not parse or does not fit the model, or
//                    `auto`, which is no policy of its own.
absl::StatusOr<std::vector<EvalPolicy>> ParsePolicies(const std::vector<std::string>& pieces,
                                                      const moe::ModelFacts& model);

// Settings that span every family for a model, from a few percent of experts saved to most of them.
std::vector<std::string> AllPolicies(const moe::ModelFacts& model);

}  // namespace lynx::cli
