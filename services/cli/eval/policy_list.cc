#include "services/cli/eval/policy_list.h"

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace lynx::cli {
namespace {

using Kind = moe::Policy::Kind;

std::string FamilyOf(const moe::Policy& policy) {
  std::string family(moe::KindName(policy.kind));
  switch (policy.kind) {
    case Kind::kLynx:
    case Kind::kLynxCompat:
      absl::StrAppend(&family, " alpha=", policy.alpha);
      break;
    case Kind::kBudget:
      if (policy.fraction > 0) absl::StrAppend(&family, " fraction");
      if (policy.coverage > 0) absl::StrAppend(&family, " coverage");
      if (policy.row_coverage > 0) absl::StrAppend(&family, " row_coverage");
      break;
    default:
      break;
  }
  if (policy.self_scaled) absl::StrAppend(&family, " self_scaled");
  if (policy.ep_balance >= 0) absl::StrAppend(&family, " ep_balance=", policy.ep_balance);
  if (policy.kept_ranks() > 0) absl::StrAppend(&family, " floor=", policy.kept_ranks());
  return family;
}

absl::StatusOr<EvalPolicy> MakeEvalPolicy(const std::string& text, const moe::ModelFacts& model) {
  LYNX_ASSIGN_OR_RETURN(moe::Policy policy, moe::ParsePolicy(text));
  if (policy.kind == Kind::kAuto) {
    return absl::InvalidArgumentError(
        "policy auto chooses among others while it serves: name those instead");
  }
  policy = moe::WithPreset(policy, model);
  LYNX_RETURN_IF_ERROR(moe::CheckPolicy(policy, model.experts, model.top_k));
  return EvalPolicy{.name = moe::ToString(policy), .family = FamilyOf(policy), .policy = policy};
}

}  // namespace

absl::StatusOr<std::vector<EvalPolicy>> ParsePolicies(const std::vector<std::string>& pieces,
                                                      const moe::ModelFacts& model) {
  std::vector<std::string> texts;
  for (const std::string& piece : pieces) {
    const bool parameter =
        piece.find('=') != std::string::npos && piece.find(':') == std::string::npos;
    if (piece == "all") {
      for (std::string& text : AllPolicies(model)) texts.push_back(std::move(text));
    } else if (parameter && !texts.empty()) {
      absl::StrAppend(&texts.back(), ",", piece);
    } else {
      texts.push_back(piece);
    }
  }
  if (texts.empty()) return absl::InvalidArgumentError("no policy is named");

  std::vector<EvalPolicy> policies;
  for (const std::string& text : texts) {
    LYNX_ASSIGN_OR_RETURN(EvalPolicy policy, MakeEvalPolicy(text, model));
    const bool known = std::any_of(policies.begin(), policies.end(), [&](const EvalPolicy& other) {
      return other.policy == policy.policy;
    });
    if (!known) policies.push_back(std::move(policy));
  }
  return policies;
}

std::vector<std::string> AllPolicies(const moe::ModelFacts& model) {
  std::vector<std::string> all = {"exact"};
  // Counts that fit the model, as shares of it; small models have fewer different ones.
  auto add_counts = [&](const char* head, int32_t most, std::initializer_list<double> shares,
                        const char* tail) {
    int32_t last = 0;
    for (double share : shares) {
      const auto count = static_cast<int32_t>(share * most);
      if (count <= last || count >= most) continue;
      last = count;
      all.push_back(absl::StrCat(head, count, tail));
    }
  };
  auto add_each = [&](const char* head, std::initializer_list<const char*> values,
                      const char* tail) {
    for (const char* value : values) all.push_back(absl::StrCat(head, value, tail));
  };
  add_counts("prune:k0=", model.top_k, {0.25, 0.5, 0.75}, "");
  for (const char* tail : {"", ",floor=1"}) {
    add_counts("vote:M=", model.experts, {0.375, 0.5, 0.625, 0.75}, tail);
  }
  std::erase_if(all, [&](const std::string& text) {
    const auto policy = moe::ParsePolicy(text);
    return !policy.ok() || !moe::CheckPolicy(*policy, model.experts, model.top_k).ok();
  });
  add_each("lynx_compat:alpha=3,beta=", {"2", "3", "4"}, "");
  add_each("lynx_compat:alpha=1,beta=", {"1", "2"}, "");
  add_each("lynx:alpha=3,beta=", {"1", "2", "3", "4", "5"}, "");
  add_each("lynx:alpha=1,beta=", {"1", "2", "4"}, ",floor=1");
  add_each("lynx:alpha=4,beta=", {"2", "3", "4"}, ",self_scaled=true");
  for (int32_t k0 = 1; k0 <= model.top_k - 2; ++k0) all.push_back(absl::StrCat("oea:k0=", k0));
  add_each("budget:fraction=", {"0.4", "0.5", "0.6", "0.7", "0.8"}, ",floor=1");
  add_each("budget:coverage=", {"0.8", "0.85", "0.9", "0.95", "0.97", "0.99"}, ",floor=1");
  add_each("budget:row_coverage=", {"0.6", "0.7", "0.8", "0.9"}, ",floor=1");
  add_each("marginal:lambda=", {"0.01", "0.02", "0.05", "0.1", "0.2"}, ",floor=1");
  return all;
}

}  // namespace lynx::cli
