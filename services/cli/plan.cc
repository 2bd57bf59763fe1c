#include "services/cli/plan.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "common/base/file.h"
#include "common/base/status_macros.h"
#include "common/config/flag_set.h"
#include "common/moe/expert_placement.h"
#include "common/moe/planner.h"
#include "common/moe/presets.h"
#include "services/cli/npy.h"

namespace lynx::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kMaxFileBytes = size_t{64} << 20;
constexpr size_t kMaxRows = 16384;
constexpr size_t kMaxExperts = 4096;

struct Parameter {
  const char* flag;
  const char* key;  // Of a policy.
  const char* help;
  std::string value;
};

struct PlanConfig {
  std::string policy = "exact";
  std::vector<Parameter> parameters = {
      {"alpha", "alpha", "lynx: bins a unit of logit gap", ""},
      {"beta", "beta", "lynx: the last bin, or none", ""},
      {"floor", "floor", "lynx, vote, budget, marginal: first ranks of every row that stay", ""},
      {"self-scaled", "self_scaled", "lynx: gaps in units of the row's own spread (true, false)",
       ""},
      {"k0", "k0", "prune, oea: ranks of a row that are wanted", ""},
      {"M", "M", "vote, budget: experts to keep", ""},
      {"fraction", "fraction", "budget: the same, as a share of the exact union", ""},
      {"coverage", "coverage", "budget: enough kept weight, mean over rows", ""},
      {"row-coverage", "row_coverage", "budget: enough kept weight in every row", ""},
      {"lambda", "lambda", "marginal: kept weight that one more expert must add", ""},
      {"ep-balance", "ep_balance",
       "all but exact, prune and lynx_compat: share of kept weight that may go so that the rank "
       "with "
       "most experts has fewer",
       ""},
  };
  int32_t top_k = 0;
  int32_t ep = 1;
  std::string gate = "renorm";
  std::string phase = "decode";
  std::vector<std::string> valid;
  std::vector<std::string> opt_out;
  std::string logits;
};

// One 0 or 1 a row, or nothing.
absl::StatusOr<std::vector<uint8_t>> ParseMarks(const char* flag,
                                                const std::vector<std::string>& words,
                                                size_t rows) {
  std::vector<uint8_t> marks;
  for (const std::string& word : words) {
    if (word != "0" && word != "1") {
      return absl::InvalidArgumentError(absl::StrCat("--", flag, ": '", word, "' is not 0 or 1"));
    }
    marks.push_back(word == "1" ? 1 : 0);
  }
  if (!words.empty() && words.size() != rows) {
    return absl::InvalidArgumentError(
        absl::StrCat("--", flag, " has ", words.size(), " marks for ", rows, " rows"));
  }
  return marks;
}

absl::StatusOr<moe::Policy> ReadPolicy(const PlanConfig& config) {
  std::string text = config.policy;
  bool first = text.find(':') == std::string::npos;
  for (const Parameter& parameter : config.parameters) {
    if (parameter.value.empty()) continue;
    absl::StrAppend(&text, first ? ":" : ",", parameter.key, "=", parameter.value);
    first = false;
  }
  LYNX_ASSIGN_OR_RETURN(moe::Policy policy, moe::ParsePolicy(text));
  if (policy.kind == moe::Policy::Kind::kAuto) {
    return absl::InvalidArgumentError("policy auto chooses by load; name the one to look at");
  }
  return policy;
}

absl::StatusOr<FloatMatrix> ReadLogits(const std::string& path) {
  LYNX_ASSIGN_OR_RETURN(const std::string bytes, ReadFile(path, kMaxFileBytes));
  absl::StatusOr<FloatMatrix> matrix = ParseNpy(bytes);
  if (!matrix.ok()) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": ", matrix.status().message()));
  }
  if (matrix->rows > kMaxRows || matrix->columns > kMaxExperts) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": ", matrix->rows, " rows of ",
                                                   matrix->columns, " experts; at most ", kMaxRows,
                                                   " of ", kMaxExperts, " are planned for"));
  }
  return matrix;
}

Json PlanJson(const moe::RoutingPlan& plan) {
  Json rows = Json::array();
  Json kept_mass = Json::array();
  const auto stride = static_cast<size_t>(plan.top_k());
  for (int32_t row = 0; row < plan.rows(); ++row) {
    const auto width = static_cast<size_t>(plan.row_width(row));
    if (width == 0) {
      rows.push_back(nullptr);
      kept_mass.push_back(nullptr);
      continue;
    }
    const auto r = static_cast<size_t>(row);
    Json ids = Json::array();
    Json weights = Json::array();
    for (size_t j = r * stride; j < r * stride + width; ++j) {
      ids.push_back(plan.ids()[j]);
      weights.push_back(plan.weights()[j]);
    }
    rows.push_back({{"ids", std::move(ids)}, {"weights", std::move(weights)}});
    kept_mass.push_back(plan.kept_mass()[r]);
  }
  Json active = Json::array();
  for (int32_t e : plan.active()) active.push_back(e);
  Json json = {{"active", std::move(active)},
               {"rows", std::move(rows)},
               {"exact_active", plan.stats().experts_exact},
               {"kept_mass", std::move(kept_mass)}};
  if (plan.stats().ranks > 0) {
    json["exact_rank_active"] = plan.stats().rank_experts_exact;
    json["rank_active"] = plan.stats().rank_experts;
  }
  return json;
}

// Names the first row that cannot be ranked.
absl::Status CheckRows(const moe::RoutingPlan& plan) {
  if (plan.stats().bad_rows == 0) return absl::OkStatus();
  for (int32_t row = 0; row < plan.rows(); ++row) {
    const auto first = static_cast<size_t>(row) * static_cast<size_t>(plan.top_k());
    if (plan.row_width(row) == 0 || !std::isnan(plan.weights()[first])) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        "row ", row, " has a logit that is NaN or +Inf, or fewer than --k finite ones"));
  }
  return absl::InternalError("a row cannot be ranked");
}

struct Outcome {
  absl::Status status;
  int exit_code = 0;
};

Outcome Run(const PlanConfig& config, std::ostream& out) {
  if (config.logits.empty()) return {absl::InvalidArgumentError("--logits is missing"), 2};
  if (config.top_k == 0) return {absl::InvalidArgumentError("--k is missing or 0"), 2};
  const absl::StatusOr<moe::Policy> named = ReadPolicy(config);
  if (!named.ok()) return {named.status(), 2};
  const absl::StatusOr<FloatMatrix> logits = ReadLogits(config.logits);
  if (!logits.ok()) return {logits.status(), 1};

  const auto rows = static_cast<int32_t>(logits->rows);
  const auto experts = static_cast<int32_t>(logits->columns);
  if (config.top_k > experts) {
    return {absl::InvalidArgumentError(absl::StrCat(
                "--k is ", config.top_k, ", but the logits are of ", experts, " experts")),
            2};
  }
  const absl::StatusOr<std::vector<uint8_t>> valid =
      ParseMarks("valid", config.valid, logits->rows);
  if (!valid.ok()) return {valid.status(), 2};
  const absl::StatusOr<std::vector<uint8_t>> opt_out =
      ParseMarks("opt-out", config.opt_out, logits->rows);
  if (!opt_out.ok()) return {opt_out.status(), 2};
  const moe::Policy policy = moe::WithPreset(*named, {.experts = experts, .top_k = config.top_k});
  if (absl::Status fits = moe::CheckPolicy(policy, experts, config.top_k); !fits.ok()) {
    return {fits, 2};
  }

  std::vector<const moe::Policy*> policies(logits->rows, &policy);
  for (size_t row = 0; row < opt_out->size(); ++row) {
    if ((*opt_out)[row] != 0) policies[row] = nullptr;
  }
  moe::RouterInput input;
  input.logits = logits->values;
  input.rows = rows;
  input.experts = experts;
  input.top_k = config.top_k;
  if (config.gate == "keep-mass") input.gate.rule = moe::Gate::Rule::kKeepMass;
  if (config.phase == "prefill") input.phase = moe::Phase::kPrefill;
  input.policies = policies;
  input.valid = *valid;
  moe::ExpertPlacement placement;
  if (config.ep > 1) {
    if (config.ep > experts) {
      return {absl::InvalidArgumentError(absl::StrCat("--ep: ", config.ep, " ranks for the ",
                                                      experts, " experts of ", config.logits)),
              2};
    }
    placement = moe::PlaceEvenly(experts, config.ep);
    input.placement = &placement;
  }
  const int32_t planned_rows = std::max(1, rows);
  moe::RoutingPlan plan(planned_rows, experts, config.top_k);
  moe::Planner(planned_rows, experts, config.top_k).MakePlan(input, plan);
  if (absl::Status bad = CheckRows(plan); !bad.ok()) {
    return {absl::InvalidArgumentError(absl::StrCat(config.logits, ": ", bad.message())), 1};
  }
  out << PlanJson(plan).dump() << "\n";
  return {};
}

}  // namespace

int RunPlan(int argc, const char* const* argv, std::ostream& out, std::ostream& err) {
  PlanConfig config;
  config::FlagSet flags("lynx plan",
                        "Prints what a routing policy makes of one step's router logits, as JSON.");
  flags.SetOutput(&out);
  flags.AddString("policy", &config.policy,
                  "exact, prune, vote, lynx_compat, lynx, oea, budget or marginal; parameters by "
                  "their flags or as name:key=value,key=value");
  for (Parameter& parameter : config.parameters) {
    flags.AddString(parameter.flag, &parameter.value, parameter.help);
  }
  flags.AddInt("k", &config.top_k, {0, kMaxExperts}, "Experts of a row (required)");
  flags.AddInt("ep", &config.ep, {1, kMaxExperts}, "Ranks that share the experts evenly");
  flags.AddChoice("gate", &config.gate, {"renorm", "keep-mass"},
                  "Weights: summing to 1, or to what the row's own experts have");
  flags.AddChoice("phase", &config.phase, {"decode", "prefill"}, "What the step computes");
  flags.AddStrings("valid", &config.valid, "1 or 0 for each row; 0: a padding row");
  flags.AddStrings("opt-out", &config.opt_out,
                   "1 or 0 for each row; 1: the row keeps its own experts, and votes");
  flags.AddString("logits", &config.logits,
                  "NumPy file of logits [rows, experts], float32 (required)");

  const absl::StatusOr<config::ParseOutcome> parsed = flags.Parse(argc, argv);
  if (parsed.ok() && *parsed == config::ParseOutcome::kPrinted) return 0;
  const Outcome outcome = parsed.ok() ? Run(config, out) : Outcome{parsed.status(), 2};
  if (!outcome.status.ok()) err << "lynx plan: " << outcome.status.message() << "\n";
  return outcome.exit_code;
}

}  // namespace lynx::cli
