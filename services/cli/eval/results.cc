#include "services/cli/eval/results.h"

#include <algorithm>
#include <utility>

namespace lynx::cli {
namespace {

TextScore ScoreOf(std::string name, std::span<const WindowScore> windows) {
  auto estimate = [&](auto value) {
    std::vector<double> values;
    for (const WindowScore& window : windows) values.push_back(value(window));
    return EstimateMean(values);
  };
  return {.name = std::move(name),
          .windows = static_cast<int64_t>(windows.size()),
          .nll_exact = estimate([](const WindowScore& w) { return w.nll_exact; }),
          .nll = estimate([](const WindowScore& w) { return w.nll; }),
          .delta = estimate([](const WindowScore& w) { return w.nll - w.nll_exact; }),
          .kl = estimate([](const WindowScore& w) { return w.kl; }),
          .agreement = estimate([](const WindowScore& w) { return w.agreement; })};
}

void AddText(const TextSet& texts, const TextRun& run, EvalResult& result) {
  result.text = ScoreOf("all", run.windows);
  result.text_routing = run.routing;
  for (size_t domain = 0; domain < texts.domains.size(); ++domain) {
    std::vector<WindowScore> windows;
    for (size_t i = 0; i < run.windows.size(); ++i) {
      if (texts.windows[i].domain == static_cast<int32_t>(domain)) {
        windows.push_back(run.windows[i]);
      }
    }
    if (!windows.empty()) result.domains.push_back(ScoreOf(texts.domains[domain], windows));
  }
}

void AddTasks(const TaskSet& tasks, const TaskRun& run, const TaskRun& exact, EvalResult& result) {
  result.task_routing = run.routing;
  std::vector<Estimate> deltas;
  for (size_t task = 0; task < tasks.tasks.size(); ++task) {
    std::vector<double> right_exact;
    std::vector<double> right;
    std::vector<double> delta;
    for (size_t i = 0; i < tasks.items.size(); ++i) {
      if (tasks.items[i].task != static_cast<int32_t>(task)) continue;
      right_exact.push_back(exact.correct[i]);
      right.push_back(run.correct[i]);
      delta.push_back(right.back() - right_exact.back());
    }
    if (right.empty()) continue;
    result.tasks.push_back({.name = tasks.tasks[task],
                            .items = static_cast<int64_t>(right.size()),
                            .exact = EstimateMean(right_exact),
                            .policy = EstimateMean(right),
                            .delta = EstimateMean(delta)});
    deltas.push_back(result.tasks.back().delta);
  }
  result.task_delta = AverageOf(deltas);
}

// The value where the settings of a family, interpolated, take `wanted` experts.
template <typename RoutingOf, typename ValueOf>
std::optional<Estimate> AtCount(std::span<const EvalResult* const> settings, double wanted,
                                RoutingOf routing, ValueOf value) {
  std::vector<double> experts;
  for (const EvalResult* setting : settings) experts.push_back(routing(*setting).experts());
  const std::optional<Bracket> bracket = FindBracket(experts, wanted);
  if (!bracket) return std::nullopt;
  return Interpolate(*bracket, value(*settings[bracket->low]), value(*settings[bracket->high]));
}

// What cuts are measured by. A policy's own steps would have had slightly other exact unions, as
// their router sees what it changed; families must share one count.
const EvalResult& ReferenceOf(std::span<const EvalResult> results) {
  const auto exact = std::find_if(results.begin(), results.end(),
                                  [](const EvalResult& r) { return r.family == "exact"; });
  return exact != results.end() ? *exact : results.front();
}

}  // namespace

std::vector<EvalResult> CollectResults(int32_t batch, std::span<const EvalPolicy> policies,
                                       const TextSet& texts, std::span<const TextRun> text_runs,
                                       const TaskSet& tasks, std::span<const TaskRun> task_runs,
                                       const TaskRun& exact_tasks) {
  std::vector<EvalResult> results;
  for (size_t i = 0; i < policies.size(); ++i) {
    EvalResult result;
    result.policy = policies[i].name;
    result.family = policies[i].family;
    result.batch = batch;
    if (!text_runs.empty()) AddText(texts, text_runs[i], result);
    if (!task_runs.empty()) AddTasks(tasks, task_runs[i], exact_tasks, result);
    results.push_back(std::move(result));
  }
  return results;
}

std::vector<MatchedFamily> MatchFamilies(std::span<const EvalResult> results,
                                         std::span<const double> cuts) {
  std::vector<std::string> families;
  for (const EvalResult& result : results) {
    const bool known = std::find(families.begin(), families.end(), result.family) != families.end();
    if (!known && result.family != "exact") families.push_back(result.family);
  }
  std::vector<MatchedFamily> matched;
  if (families.empty()) return matched;
  const EvalResult& reference = ReferenceOf(results);
  const auto text = [](const EvalResult& r) -> const RoutingTally& { return r.text_routing; };
  const auto task = [](const EvalResult& r) -> const RoutingTally& { return r.task_routing; };
  for (const std::string& family : families) {
    std::vector<const EvalResult*> settings;
    for (const EvalResult& result : results) {
      if (result.family == family) settings.push_back(&result);
    }
    MatchedFamily row;
    row.family = family;
    bool any = false;
    for (double cut : cuts) {
      MatchedScore score;
      if (reference.text) {
        score.nll_delta = AtCount(settings, (1 - cut) * reference.text_routing.experts_exact(),
                                  text, [](const EvalResult& r) { return r.text->delta; });
      }
      if (!reference.tasks.empty()) {
        score.task_delta = AtCount(settings, (1 - cut) * reference.task_routing.experts_exact(),
                                   task, [](const EvalResult& r) { return r.task_delta; });
      }
      any = any || score.nll_delta || score.task_delta;
      row.scores.push_back(score);
    }
    if (any) matched.push_back(std::move(row));
  }
  return matched;
}

}  // namespace lynx::cli
