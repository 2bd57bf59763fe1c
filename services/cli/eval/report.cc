#include "services/cli/eval/report.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace lynx::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::array kCuts = {0.2, 0.3, 0.4, 0.5};

double CutPercent(const RoutingTally& routing) {
  return routing.experts_exact() > 0 ? 100 * (1 - routing.experts() / routing.experts_exact()) : 0;
}

void PrintPolicies(std::span<const EvalResult> results, int width, std::ostream& out) {
  const bool text = results.front().text.has_value();
  const bool tasks = !results.front().tasks.empty();
  out << absl::StrFormat("%-*s", width, "policy");
  if (text) {
    out << absl::StrFormat(" %7s %4s %6s %6s %18s %8s %6s", "experts", "cut", "kept", "worst",
                           "nll change", "kl", "top-1");
  }
  if (tasks) out << absl::StrFormat(" %12s %4s %16s", "task experts", "cut", "right, points");
  out << "\n";
  for (const EvalResult& result : results) {
    out << absl::StrFormat("%-*s", width, result.policy);
    if (text) {
      const RoutingTally& routing = result.text_routing;
      out << absl::StrFormat(" %7.1f %3.0f%% %6.3f %6.3f %+9.4f (%.4f) %8.5f %5.1f%%",
                             routing.experts(), CutPercent(routing), routing.kept_mass_mean(),
                             routing.kept_mass_min(), result.text->delta.mean,
                             result.text->delta.error, result.text->kl.mean,
                             100 * result.text->agreement.mean);
    }
    if (tasks) {
      const RoutingTally& routing = result.task_routing;
      out << absl::StrFormat(" %12.1f %3.0f%% %+9.2f (%.2f)", routing.experts(),
                             CutPercent(routing), 100 * result.task_delta.mean,
                             100 * result.task_delta.error);
    }
    out << "\n";
  }
}

std::string Cell(const std::optional<Estimate>& estimate, double scale, int digits) {
  if (!estimate) return "-";
  return absl::StrFormat("%+.*f (%.*f)", digits, scale * estimate->mean, digits,
                         scale * estimate->error);
}

void PrintMatched(std::span<const MatchedFamily> families, bool tasks, int width,
                  std::ostream& out) {
  out << (tasks ? "answers right, change in points, at a cut of the tasks' experts of\n"
                : "nll change, at a cut of the text's experts of\n")
      << absl::StrFormat("%-*s", width, "family");
  for (double cut : kCuts) out << absl::StrFormat(" %17s", absl::StrFormat("%.0f%%", 100 * cut));
  out << "\n";
  for (const MatchedFamily& family : families) {
    out << absl::StrFormat("%-*s", width, family.family);
    for (const MatchedScore& score : family.scores) {
      out << absl::StrFormat(" %17s",
                             tasks ? Cell(score.task_delta, 100, 2) : Cell(score.nll_delta, 1, 4));
    }
    out << "\n";
  }
}

Json LayersJson(const RoutingTally& routing) {
  Json layers = Json::array();
  for (const RoutingTally::Layer& layer : routing.layers()) {
    layers.push_back({{"layer", layer.layer},
                      {"experts_exact", layer.experts_exact},
                      {"experts", layer.experts},
                      {"kept_mass_mean", layer.kept_mass_mean}});
  }
  return layers;
}

void AddScore(const TextScore& score, Json& json) {
  json["nll_exact"] = score.nll_exact.mean;
  json["nll"] = score.nll.mean;
  json["nll_delta"] = score.delta.mean;
  json["nll_delta_error"] = score.delta.error;
  json["kl"] = score.kl.mean;
  json["kl_error"] = score.kl.error;
  json["top1_agreement"] = score.agreement.mean;
  json["top1_agreement_error"] = score.agreement.error;
  json["windows"] = score.windows;
}

Json ResultJson(const EvalResult& result) {
  const RoutingTally& routing = result.routing();
  Json json = {{"policy", result.policy},
               {"family", result.family},
               {"batch", result.batch},
               {"experts_exact", routing.experts_exact()},
               {"experts", routing.experts()},
               {"kept_mass_mean", routing.kept_mass_mean()},
               {"kept_mass_min", routing.kept_mass_min()},
               {"guarded_share", routing.guarded_share()},
               {"steps", routing.steps()},
               {"layers", LayersJson(routing)}};
  if (result.text) {
    AddScore(*result.text, json);
  } else {
    for (const char* key : {"nll_exact", "nll", "kl", "top1_agreement"}) json[key] = nullptr;
  }
  Json& domains = json["domains"] = Json::object();
  for (const TextScore& domain : result.domains) AddScore(domain, domains[domain.name]);
  Json& tasks = json["tasks"] = Json::object();
  for (const TaskScore& task : result.tasks) {
    tasks[task.name] = {{"exact", task.exact.mean},
                        {"policy", task.policy.mean},
                        {"delta", task.delta.mean},
                        {"delta_error", task.delta.error},
                        {"items", task.items}};
  }
  if (!result.tasks.empty()) {
    json["task_delta"] = result.task_delta.mean;
    json["task_delta_error"] = result.task_delta.error;
    json["task_experts_exact"] = result.task_routing.experts_exact();
    json["task_experts"] = result.task_routing.experts();
    json["task_kept_mass_mean"] = result.task_routing.kept_mass_mean();
    json["task_kept_mass_min"] = result.task_routing.kept_mass_min();
    json["task_steps"] = result.task_routing.steps();
    json["task_layers"] = LayersJson(result.task_routing);
  }
  return json;
}

}  // namespace

void PrintTables(const EvalSetup& setup, std::span<const EvalResult> results, std::ostream& out) {
  if (results.empty()) return;
  const EvalResult& first = results.front();
  out << "batch " << first.batch;
  if (first.text) {
    out << absl::StrFormat(
        "; %d windows of text, %d positions behind a context of %d, over %s KV; exact: %.1f "
        "experts, nll %.4f",
        setup.windows, setup.positions, setup.context,
        setup.exact_kv ? "exact" : "the policy's own", first.text_routing.experts_exact(),
        first.text->nll_exact.mean);
  }
  if (!first.tasks.empty()) {
    double right = 0;
    for (const TaskScore& task : first.tasks) right += task.exact.mean;
    out << absl::StrFormat("; %d items of %d tasks; exact: %.1f experts, %.1f%% right",
                           setup.task_items, first.tasks.size(), first.task_routing.experts_exact(),
                           100 * right / static_cast<double>(first.tasks.size()));
  }
  out << "\n\n";
  size_t width = std::string("policy").size();
  for (const EvalResult& result : results) {
    width = std::max({width, result.policy.size(), result.family.size()});
  }
  PrintPolicies(results, static_cast<int>(width), out);
  out << "\n";
  const std::vector<MatchedFamily> families = MatchFamilies(results, kCuts);
  if (families.empty()) return;
  if (first.text) PrintMatched(families, /*tasks=*/false, static_cast<int>(width), out);
  if (first.text && !first.tasks.empty()) out << "\n";
  if (!first.tasks.empty()) PrintMatched(families, /*tasks=*/true, static_cast<int>(width), out);
  out << "\n";
}

std::string ToJson(const EvalSetup& setup, std::span<const EvalResult> results) {
  Json json = {{"model", setup.model},
               {"numeric_class", setup.numeric_class},
               {"context", setup.context},
               {"positions", setup.positions},
               {"kv", setup.exact_kv ? "exact" : "own"},
               {"windows", setup.windows},
               {"task_items", setup.task_items}};
  Json& list = json["results"] = Json::array();
  for (const EvalResult& result : results) list.push_back(ResultJson(result));
  return json.dump(1) + "\n";
}

}  // namespace lynx::cli
