#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "services/cli/top/metrics_page.h"

namespace lynx::cli {

// One line of the router's /nodes.
struct NodeLine {
  std::string endpoint = {};
  std::string role = {};
  std::string state = {};
  std::string detail = {};
  std::string incarnation = {};  // Empty: nobody answers there.
  double kv_blocks = 0;
  double kv_blocks_free = 0;
  double running = 0;
  double waiting = 0;
  double queued_prompt_tokens = 0;
  double step_base_seconds = 0;
  double step_row_seconds = 0;
  double tokens_total = 0;
  double moe_plans_total = 0;
  double moe_experts_exact_total = 0;
  double moe_experts_total = 0;
};

// What a router said at one moment.
struct ClusterSample {
  absl::Time at;
  MetricsPage metrics;
  std::vector<NodeLine> nodes;
};

// InvalidArgument: not what a router's /nodes says.
absl::StatusOr<std::vector<NodeLine>> ParseNodesPage(std::string_view body);

// The cluster between two samples, as lines of text: rates and quantiles are those of the time
// between, everything else is as the later one has it. A pure function.
std::string TopView(const ClusterSample& before, const ClusterSample& now);

}  // namespace lynx::cli
