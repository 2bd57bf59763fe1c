#include "services/cli/top/top_view.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/json_shape.h"

namespace lynx::cli {
namespace {

using nlohmann::json;

std::string Text(const json& node, const char* key) {
  const auto it = node.find(key);
  return it != node.end() && it->is_string() ? it->get<std::string>() : std::string();
}

double Number(const json& node, const char* key) {
  const auto it = node.find(key);
  return it != node.end() && it->is_number() ? it->get<double>() : 0;
}

std::string Milliseconds(double seconds) {
  return seconds < 0 ? "-" : absl::StrFormat("%.*f ms", seconds < 0.1 ? 1 : 0, seconds * 1e3);
}

std::string Rate(double count, double seconds) {
  const double rate = seconds > 0 ? count / seconds : 0;
  return absl::StrFormat("%.*f", rate > 0 && rate < 10 ? 1 : 0, rate);
}

std::string Quantiles(const ClusterSample& before, const ClusterSample& now, const char* title,
                      const std::string& histogram) {
  const auto at = [&](double share) {
    return Milliseconds(QuantileBetween(before.metrics, now.metrics, histogram, share));
  };
  return absl::StrFormat("%s p50 %s  p95 %s  p99 %s", title, at(0.5), at(0.95), at(0.99));
}

// The same life of the same node in the earlier sample; null when it had none.
const NodeLine* Earlier(const ClusterSample& sample, const NodeLine& node) {
  for (const NodeLine& line : sample.nodes) {
    if (line.endpoint == node.endpoint && line.incarnation == node.incarnation) return &line;
  }
  return nullptr;
}

// Distinct experts of a layer's plan: under exact routing, and as read.
std::string Experts(const NodeLine* before, const NodeLine& now) {
  const double plans = before != nullptr ? now.moe_plans_total - before->moe_plans_total : 0;
  if (!(plans > 0)) return "-";
  return absl::StrFormat("%.1f > %.1f",
                         (now.moe_experts_exact_total - before->moe_experts_exact_total) / plans,
                         (now.moe_experts_total - before->moe_experts_total) / plans);
}

// Columns as wide as their widest cell, two spaces between.
std::string Table(const std::vector<std::vector<std::string>>& rows) {
  std::vector<size_t> widths(rows.front().size());
  for (const auto& row : rows) {
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string text;
  for (const auto& row : rows) {
    std::string line;
    for (size_t i = 0; i < row.size(); ++i) {
      const std::string pad(widths[i] - row[i].size(), ' ');
      // Numbers stand to the right.
      absl::StrAppend(&line, i == 0 ? "" : "  ", i < 3 ? row[i] + pad : pad + row[i]);
    }
    line.erase(line.find_last_not_of(' ') + 1);
    absl::StrAppend(&text, line, "\n");
  }
  return text;
}

std::vector<std::string> Row(const ClusterSample& before, const NodeLine& node, double seconds) {
  if (node.incarnation.empty()) return {node.role, node.endpoint, node.state};
  const NodeLine* earlier = Earlier(before, node);
  const double used = node.kv_blocks - node.kv_blocks_free;
  const double step = node.step_base_seconds + node.step_row_seconds * std::max(1.0, node.running);
  const bool prefill = node.role == "prefill";
  return {node.role,
          node.endpoint,
          node.state,
          absl::StrFormat("%.0f", node.running),
          absl::StrFormat("%.0f", node.waiting),
          absl::StrFormat("%.0f", node.queued_prompt_tokens),
          node.kv_blocks > 0 ? absl::StrFormat("%.0f%%", 100 * used / node.kv_blocks) : "-",
          earlier != nullptr ? Rate(node.tokens_total - earlier->tokens_total, seconds) : "-",
          prefill || step <= 0 ? "-" : Milliseconds(step),
          Experts(earlier, node)};
}

}  // namespace

absl::StatusOr<std::vector<NodeLine>> ParseNodesPage(std::string_view body) {
  json page;
  if (CheckJsonShape(body).ok()) page = json::parse(body, nullptr, /*allow_exceptions=*/false);
  if (!page.is_object() || !page.contains("nodes") || !page["nodes"].is_array()) {
    return absl::InvalidArgumentError("no list of nodes: is this a router of lynx?");
  }
  std::vector<NodeLine> lines;
  for (const json& node : page["nodes"]) {
    if (!node.is_object()) return absl::InvalidArgumentError("a node that is no object");
    lines.push_back({.endpoint = Text(node, "endpoint"),
                     .role = Text(node, "role"),
                     .state = Text(node, "state"),
                     .detail = Text(node, "detail"),
                     .incarnation = Text(node, "incarnation"),
                     .kv_blocks = Number(node, "kv_blocks"),
                     .kv_blocks_free = Number(node, "kv_blocks_free"),
                     .running = Number(node, "running"),
                     .waiting = Number(node, "waiting"),
                     .queued_prompt_tokens = Number(node, "queued_prompt_tokens"),
                     .step_base_seconds = Number(node, "step_base_seconds"),
                     .step_row_seconds = Number(node, "step_row_seconds"),
                     .tokens_total = Number(node, "tokens_total"),
                     .moe_plans_total = Number(node, "moe_plans_total"),
                     .moe_experts_exact_total = Number(node, "moe_experts_exact_total"),
                     .moe_experts_total = Number(node, "moe_experts_total")});
  }
  return lines;
}

std::string TopView(const ClusterSample& before, const ClusterSample& now) {
  const double seconds = absl::ToDoubleSeconds(now.at - before.at);
  const auto rate = [&](const std::string& name, const MetricsPage::Labels& labels = {}) {
    return Rate(now.metrics.Sum(name, labels) - before.metrics.Sum(name, labels), seconds);
  };
  const auto ended = [&](const char* outcome) {
    return absl::StrCat(rate("lynx_router_requests_total", {{"outcome", outcome}}), " ", outcome);
  };
  std::string text = absl::StrFormat(
      "requests  %.0f running, %.0f sequences queued; a second: %s, %s, %s, %s, %s\n",
      now.metrics.Sum("lynx_router_inflight_requests"),
      now.metrics.Sum("lynx_router_queued_requests"), ended("ok"), ended("rejected"),
      ended("server_error"), ended("stream_error"), ended("cancelled"));
  absl::StrAppend(&text, "tokens    a second: ", rate("lynx_router_prompt_tokens_total"),
                  " of prompts, ", rate("lynx_router_output_tokens_total"), " of answers\n");
  absl::StrAppend(&text, "latency   ",
                  Quantiles(before, now, "TTFT", "lynx_router_time_to_first_token_seconds"), "   ",
                  Quantiles(before, now, "TPOT", "lynx_router_time_per_output_token_seconds"),
                  "\n\n");
  std::vector<std::vector<std::string>> rows = {{"ROLE", "NODE", "STATE", "RUNNING", "WAITING",
                                                 "PROMPT TOKENS", "KV", "TOKENS/S", "STEP",
                                                 "EXPERTS"}};
  std::string notes;
  for (const NodeLine& node : now.nodes) {
    rows.push_back(Row(before, node, seconds));
    if (!node.detail.empty()) absl::StrAppend(&notes, node.endpoint, ": ", node.detail, "\n");
  }
  absl::StrAppend(&text, Table(rows));
  if (!notes.empty()) absl::StrAppend(&text, "\n", notes);
  return text;
}

}  // namespace lynx::cli
