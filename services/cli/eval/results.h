#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "services/cli/eval/eval_data.h"
#include "services/cli/eval/policy_list.h"
#include "services/cli/eval/routing_tally.h"
#include "services/cli/eval/statistics.h"
#include "services/cli/eval/task_eval.h"
#include "services/cli/eval/text_eval.h"

namespace lynx::cli {

// What a policy did to some windows of text. Errors are over windows, whose positions depend on
// each other; `delta` and `kl` are of the same tokens under both, window by window.
struct TextScore {
  std::string name;
  int64_t windows = 0;
  Estimate nll_exact;
  Estimate nll;
  Estimate delta;  // nll - nll_exact
  Estimate kl;
  Estimate agreement;
};

// What it did to the answers of a task: shares of items that are right.
struct TaskScore {
  std::string name;
  int64_t items = 0;
  Estimate exact;
  Estimate policy;
  Estimate delta;  // Item by item.
};

// One policy at one batch size.
struct EvalResult {
  std::string policy;
  std::string family;
  int32_t batch = 0;
  std::optional<TextScore> text;
  std::vector<TextScore> domains;
  RoutingTally text_routing;
  std::vector<TaskScore> tasks;
  Estimate task_delta;  // Mean over tasks, each counting the same.
  RoutingTally task_routing;

  // Of text where there is any, else of tasks.
  const RoutingTally& routing() const { return text ? text_routing : task_routing; }
};

// Puts together what the runs of a batch size found; `text_runs` or `task_runs` may be empty,
// otherwise they are in the order of `policies`. `exact_tasks` is the run that answers are compared
// with.
std::vector<EvalResult> CollectResults(int32_t batch, std::span<const EvalPolicy> policies,
                                       const TextSet& texts, std::span<const TextRun> text_runs,
                                       const TaskSet& tasks, std::span<const TaskRun> task_runs,
                                       const TaskRun& exact_tasks);

// A family's cost when it saves a given share of the experts, between its neighbouring settings.
struct MatchedScore {
  std::optional<Estimate> nll_delta;   // At that share of text's experts.
  std::optional<Estimate> task_delta;  // At that share of the tasks' experts.
};
struct MatchedFamily {
  std::string family;
  std::vector<MatchedScore> scores;  // As `cuts`.
};
// `results` are of one batch size. Shares are of what `exact` takes, where it is among them. It is
// left out, as are families that reach no cut.
std::vector<MatchedFamily> MatchFamilies(std::span<const EvalResult> results,
                                         std::span<const double> cuts);

}  // namespace lynx::cli
