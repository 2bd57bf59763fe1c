#include "services/cli/bench/planner_bench.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/status_macros.h"
#include "common/config/flag_set.h"
#include "common/kv/block_pool.h"
#include "common/moe/expert_placement.h"
#include "common/moe/planner.h"
#include "common/moe/presets.h"
#include "kernels/core/cpu_limit.h"
#include "kernels/core/thread_team.h"
#include "services/cli/bench/arithmetic_rate.h"
#include "services/cli/bench/bench_report.h"
#include "services/cli/bench/model_shape.h"
#include "services/cli/bench/placement_count.h"
#include "services/cli/bench/quantile.h"
#include "services/cli/bench/read_bandwidth.h"
#include "services/cli/bench/router_traces.h"
#include "services/cli/bench/run_mode.h"
#include "services/cli/bench/step_bench.h"
#include "services/cli/bench/synthetic_engine.h"
#include "services/cli/engine_flags.h"
#include "services/cli/eval/policy_list.h"

namespace lynx::cli {
namespace {

struct PlannerBenchConfig {
  std::string mode = "planner";
  std::string traces = "models/router-traces/mixed.bin";
  std::string policy = "lynx";
  std::vector<std::string> shapes = {"64x8", "128x8", "160x6", "256x8"};
  std::vector<std::string> batch = {"1", "2", "4", "8", "16", "32", "64", "128", "256"};
  std::vector<std::string> ep;
  std::vector<std::string> ep_spare;  // Empty: 0, 1 and 2.
  int32_t samples = 400;
  int32_t threads = 0;
  bool layer = true;
  bool json = false;
};

struct Shape {
  int32_t experts = 0;
  int32_t top_k = 0;
};

std::vector<float> Compose(const RouterTraces& traces, const Shape& shape, int32_t batch,
                           int64_t index) {
  std::vector<float> logits(static_cast<size_t>(batch) * static_cast<size_t>(shape.experts));
  ComposeRouterLogits(traces, shape.experts, batch, index, logits);
  return logits;
}

struct PlannerRow {
  Shape shape;
  int32_t batch = 0;
  double experts_exact = 0;
  double experts = 0;
  double median_us = 0;
  double p90_us = 0;
  double cold_median_us = 0;
};

double Microseconds(std::chrono::steady_clock::duration time) {
  return std::chrono::duration<double, std::micro>(time).count();
}

PlannerRow MeasurePlans(const RouterTraces& traces, const moe::Policy& policy, const Shape& shape,
                        int32_t batch, int32_t samples) {
  const int64_t inputs = std::min<int64_t>(samples, traces.steps * traces.layers);
  std::vector<std::vector<float>> logits;
  for (int64_t i = 0; i < inputs; ++i) logits.push_back(Compose(traces, shape, batch, i));
  const std::vector<const moe::Policy*> policies(static_cast<size_t>(batch), &policy);
  moe::RoutingPlan plan(batch, shape.experts, shape.top_k);
  moe::Planner planner(batch, shape.experts, shape.top_k);
  // What a layer's weights do to the caches between two plans.
  std::vector<uint64_t> weights((size_t{8} << 20) / sizeof(uint64_t), 1);
  std::vector<double> warm;
  std::vector<double> cold;
  PlannerRow row{.shape = shape, .batch = batch};
  uint64_t sum = 0;
  const auto measure = [&](int64_t sample) {
    const std::vector<float>& input = logits[static_cast<size_t>(sample % inputs)];
    const auto start = std::chrono::steady_clock::now();
    planner.MakePlan({.logits = input,
                      .rows = batch,
                      .experts = shape.experts,
                      .top_k = shape.top_k,
                      .policies = policies},
                     plan);
    return Microseconds(std::chrono::steady_clock::now() - start);
  };
  for (int64_t i = 0; i < inputs; ++i) {
    measure(i);
    row.experts_exact += plan.stats().experts_exact;
    row.experts += plan.stats().experts;
  }
  for (int64_t i = 0; i < samples; ++i) warm.push_back(measure(i));
  for (int64_t i = 0; i < std::min(samples, 100); ++i) {
    for (uint64_t word : weights) sum += word;
    // The router's product has just written the logits.
    for (float logit : logits[static_cast<size_t>(i % inputs)]) sum += logit > 0 ? 1 : 0;
    weights[static_cast<size_t>(i)] = sum;
    cold.push_back(measure(i));
  }
  row.experts_exact /= static_cast<double>(inputs);
  row.experts /= static_cast<double>(inputs);
  row.median_us = Median(warm);
  row.p90_us = Quantile(warm, 0.9);
  row.cold_median_us = Median(cold);
  return row;
}

// Experts of the rank that has most, where `ep` ranks share a layer's experts.
struct RankRow {
  Shape shape;
  int32_t batch = 0;
  int32_t ep = 0;
  double exact = 0;
  double policy = 0;
  double balanced = 0;  // Under the policy with ep_balance.
  double kept = 0;      // Mean kept mass under the policy,
  double balanced_kept = 0;
  double balanced_experts = 0;  // Distinct ones of all ranks.
  double balanced_us = 0;       // Median of its plans.
};

RankRow CountOnRanks(const RouterTraces& traces, const moe::Policy& policy, const Shape& shape,
                     int32_t batch, int32_t ep, int32_t samples) {
  moe::Policy plain = policy;
  plain.ep_balance = -1;
  moe::Policy balanced = policy;
  balanced.ep_balance = std::max(0.0, policy.ep_balance);
  const moe::ExpertPlacement placement = moe::PlaceEvenly(shape.experts, ep);
  moe::RoutingPlan plan(batch, shape.experts, shape.top_k);
  moe::Planner planner(batch, shape.experts, shape.top_k);
  RankRow row{.shape = shape, .batch = batch, .ep = ep};
  std::vector<double> times;
  const int64_t inputs = std::min<int64_t>(samples, traces.steps * traces.layers);
  for (int64_t i = 0; i < inputs; ++i) {
    const std::vector<float> logits = Compose(traces, shape, batch, i);
    const auto stats_of = [&](const moe::Policy& used) {
      const std::vector<const moe::Policy*> policies(static_cast<size_t>(batch), &used);
      planner.MakePlan({.logits = logits,
                        .rows = batch,
                        .experts = shape.experts,
                        .top_k = shape.top_k,
                        .policies = policies,
                        .placement = &placement},
                       plan);
      return plan.stats();
    };
    const moe::PlanStats without = stats_of(plain);
    const auto start = std::chrono::steady_clock::now();
    const moe::PlanStats with = stats_of(balanced);
    times.push_back(Microseconds(std::chrono::steady_clock::now() - start));
    row.exact += without.rank_experts_exact;
    row.policy += without.rank_experts;
    row.balanced += with.rank_experts;
    row.kept += static_cast<double>(without.kept_mass_mean);
    row.balanced_kept += static_cast<double>(with.kept_mass_mean);
    row.balanced_experts += with.experts;
  }
  for (double* sum : {&row.exact, &row.policy, &row.balanced, &row.kept, &row.balanced_kept,
                      &row.balanced_experts}) {
    *sum /= static_cast<double>(inputs);
  }
  row.balanced_us = Median(times);
  return row;
}

// Experts of the rank that has most, by where the experts are.
struct PlacementRow {
  Shape shape;
  int32_t batch = 0;
  int32_t ep = 0;
  int32_t spare = 0;
  PlacementCount count;
};

// One layer of a decode step of OLMoE-1B-7B on the node's engine, of which the plan is a share.
constexpr const char* kLayerShape = "olmoe-1b-7b";
constexpr int32_t kLayerContext = 512;

struct LayerRow {
  int32_t batch = 0;
  double layer_ms = 0;
  double plan_share = 0;
};

absl::StatusOr<LayerRow> MeasureLayer(const RouterTraces& traces, const moe::Policy& policy,
                                      int32_t batch, int32_t threads) {
  LYNX_ASSIGN_OR_RETURN(ModelShape shape, LoadModelShape(kLayerShape));
  KeepLayers(1, shape.spec);
  shape.spec.vocab_size = 64;  // The output head is no part of a layer.
  const int64_t blocks = kv::BlocksFor(kLayerContext + 1) * batch;
  model::RunnerOptions options;
  options.kv_blocks = static_cast<int32_t>(blocks);
  options.max_step_rows = batch;
  options.max_step_logits = batch;
  options.threads = threads;
  LYNX_ASSIGN_OR_RETURN(const SyntheticEngine engine,
                        StartSyntheticEngine(shape.spec, options, traces, /*seed=*/1));
  LYNX_ASSIGN_OR_RETURN(const std::unique_ptr<kernels::ThreadTeam> team,
                        kernels::ThreadTeam::Create(threads));
  LYNX_ASSIGN_OR_RETURN(const std::unique_ptr<ReadBandwidth> bandwidth,
                        ReadBandwidth::Create(int64_t{64} << 20, *team));
  ArithmeticRate arithmetic(options.compute_dtype, *team);
  kv::BlockPool pool(static_cast<int32_t>(blocks));
  StepBench bench({.made_up_prompts = true}, *engine.runner, engine.replay.get(), pool, *bandwidth,
                  arithmetic);
  const EvalPolicy measured{.name = moe::ToString(policy), .family = {}, .policy = policy};
  LYNX_ASSIGN_OR_RETURN(const std::vector<BenchResult> results,
                        bench.Decode(batch, kLayerContext, /*prompt_rows=*/0, {&measured, 1}));
  return LayerRow{.batch = batch,
                  .layer_ms = results.front().step_ms_p50,
                  .plan_share = results.front().plan_share};
}

absl::StatusOr<Shape> ParseShape(const std::string& text) {
  const size_t cross = text.find('x');
  Shape shape;
  if (cross == std::string::npos || !absl::SimpleAtoi(text.substr(0, cross), &shape.experts) ||
      !absl::SimpleAtoi(text.substr(cross + 1), &shape.top_k) || shape.experts < 1 ||
      shape.experts > 4096 || shape.top_k < 1 || shape.top_k > shape.experts) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--shapes: '", text, "', wanted EXPERTSxTOPK, as 64x8, of at most 4096 experts"));
  }
  return shape;
}

absl::StatusOr<int32_t> ParseRanks(const std::string& text, const Shape& shape) {
  int32_t ep = 0;
  if (!absl::SimpleAtoi(text, &ep) || ep < 2 || ep > shape.experts) {
    return absl::InvalidArgumentError(
        absl::StrCat("--ep: '", text, "', wanted 2 to the ", shape.experts, " experts of a shape"));
  }
  return ep;
}

absl::StatusOr<int32_t> ParseSpare(const std::string& text) {
  int32_t spare = 0;
  if (!absl::SimpleAtoi(text, &spare) || spare < 0 || spare > 4096) {
    return absl::InvalidArgumentError(
        absl::StrCat("--ep-spare: '", text, "', wanted 0 to 4096 further experts for each rank"));
  }
  return spare;
}

void PrintTable(const PlannerBenchConfig& config, const RouterTraces& traces,
                std::span<const PlannerRow> rows, std::span<const RankRow> ranks,
                std::span<const PlacementRow> placements, std::span<const LayerRow> layers,
                int32_t threads, std::ostream& out) {
  out << absl::StrFormat("plans of one layer, policy %s, one core, logits of %s\n", config.policy,
                         config.traces)
      << absl::StrFormat("%9s %6s %9s %9s %10s %10s %10s\n", "N x k", "batch", "experts", "after",
                         "median us", "p90 us", "cold us");
  for (const PlannerRow& row : rows) {
    out << absl::StrFormat("%9s %6d %9.1f %9.1f %10.2f %10.2f %10.2f%s\n",
                           absl::StrCat(row.shape.experts, "x", row.shape.top_k), row.batch,
                           row.experts_exact, row.experts, row.median_us, row.p90_us,
                           row.cold_median_us, row.shape.experts > traces.experts ? " *" : "");
  }
  out << "cold: after 8 MiB went through the caches, as weights do between two plans\n"
      << "*: logits of one token in several layers, joined and cut to N\n";
  if (!ranks.empty()) {
    out << "experts of the rank that has most, mean over the same logits\n"
        << absl::StrFormat("%9s %6s %4s %9s %9s %9s %9s %9s %9s %9s\n", "N x k", "batch", "ep",
                           "exact", "policy", "balanced", "kept", "bal. kept", "bal. all",
                           "bal. us");
  }
  for (const RankRow& row : ranks) {
    out << absl::StrFormat("%9s %6d %4d %9.2f %9.2f %9.2f %9.4f %9.4f %9.2f %9.2f\n",
                           absl::StrCat(row.shape.experts, "x", row.shape.top_k), row.batch, row.ep,
                           row.exact, row.policy, row.balanced, row.kept, row.balanced_kept,
                           row.balanced_experts, row.balanced_us);
  }
  if (!placements.empty()) {
    out << "the same by where experts are, placed by half of the logits and counted in the other\n"
        << absl::StrFormat("%9s %6s %4s %6s %8s %8s %8s %8s %8s %8s %8s %8s %9s\n", "N x k",
                           "batch", "ep", "spare", "least", "even", "tokens", "split", "activity",
                           "p. least", "p. even", "p. act.", "choose us");
  }
  for (const PlacementRow& row : placements) {
    const PlacementCount& c = row.count;
    out << absl::StrFormat(
        "%9s %6d %4d %6d %8.2f %8.2f %8.2f %8.2f %8.2f %8.2f %8.2f %8.2f %9.2f\n",
        absl::StrCat(row.shape.experts, "x", row.shape.top_k), row.batch, row.ep, row.spare,
        c.least, c.even, c.by_tokens, c.split, c.by_activity, c.policy_least, c.policy_even,
        c.policy_by_activity, c.choose_us);
  }
  if (!placements.empty()) {
    out << "the same as served: by the slots of the start, and as experts move from there\n"
        << absl::StrFormat("%9s %6s %4s %6s %8s %8s %8s %8s %8s %8s\n", "N x k", "batch", "ep",
                           "spare", "exact", "moved", "policy", "moved", "balanced", "moved");
  }
  for (const PlacementRow& row : placements) {
    const PlacementCount& c = row.count;
    out << absl::StrFormat("%9s %6d %4d %6d %8.2f %8.2f %8.2f %8.2f %8.2f %8.2f\n",
                           absl::StrCat(row.shape.experts, "x", row.shape.top_k), row.batch, row.ep,
                           row.spare, c.first, c.served, c.policy_first, c.policy_served,
                           c.balanced_first, c.balanced_served);
  }
  for (const LayerRow& row : layers) {
    out << absl::StrFormat(
        "one layer shaped as %s, batch %d, context %d, %d threads: %.2f ms; its plan takes %.3f %% "
        "of that\n",
        kLayerShape, row.batch, kLayerContext, threads, row.layer_ms, row.plan_share * 100);
  }
}

void PrintJson(const PlannerBenchConfig& config, const RouterTraces& traces,
               std::span<const PlannerRow> rows, std::span<const RankRow> ranks,
               std::span<const PlacementRow> placements, std::span<const LayerRow> layers,
               std::ostream& out) {
  nlohmann::json json{{"policy", config.policy},
                      {"rows", nlohmann::json::array()},
                      {"ranks", nlohmann::json::array()},
                      {"placements", nlohmann::json::array()},
                      {"layers", nlohmann::json::array()}};
  for (const PlannerRow& row : rows) {
    json["rows"].push_back({{"experts_total", row.shape.experts},
                            {"top_k", row.shape.top_k},
                            {"batch", row.batch},
                            {"composed", row.shape.experts > traces.experts},
                            {"experts_exact", row.experts_exact},
                            {"experts", row.experts},
                            {"median_us", row.median_us},
                            {"p90_us", row.p90_us},
                            {"cold_median_us", row.cold_median_us}});
  }
  for (const RankRow& row : ranks) {
    json["ranks"].push_back({{"experts_total", row.shape.experts},
                             {"top_k", row.shape.top_k},
                             {"batch", row.batch},
                             {"ep", row.ep},
                             {"rank_experts_exact", row.exact},
                             {"rank_experts", row.policy},
                             {"rank_experts_balanced", row.balanced},
                             {"kept_mass", row.kept},
                             {"kept_mass_balanced", row.balanced_kept},
                             {"experts_balanced", row.balanced_experts},
                             {"median_us_balanced", row.balanced_us}});
  }
  for (const PlacementRow& row : placements) {
    json["placements"].push_back({{"experts_total", row.shape.experts},
                                  {"top_k", row.shape.top_k},
                                  {"batch", row.batch},
                                  {"ep", row.ep},
                                  {"spare", row.spare},
                                  {"least", row.count.least},
                                  {"even", row.count.even},
                                  {"by_tokens", row.count.by_tokens},
                                  {"split", row.count.split},
                                  {"by_activity", row.count.by_activity},
                                  {"policy_least", row.count.policy_least},
                                  {"policy_even", row.count.policy_even},
                                  {"policy_by_activity", row.count.policy_by_activity},
                                  {"first", row.count.first},
                                  {"served", row.count.served},
                                  {"policy_first", row.count.policy_first},
                                  {"policy_served", row.count.policy_served},
                                  {"balanced_first", row.count.balanced_first},
                                  {"balanced_served", row.count.balanced_served},
                                  {"choose_us", row.count.choose_us}});
  }
  for (const LayerRow& row : layers) {
    json["layers"].push_back({{"shape", kLayerShape},
                              {"batch", row.batch},
                              {"layer_ms", row.layer_ms},
                              {"plan_share", row.plan_share}});
  }
  // Paths need not be UTF-8.
  out << json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) << "\n";
}

absl::Status Run(const PlannerBenchConfig& config, std::ostream& out) {
  std::vector<Shape> shapes;
  for (const std::string& text : config.shapes) {
    LYNX_ASSIGN_OR_RETURN(const Shape shape, ParseShape(text));
    shapes.push_back(shape);
  }
  LYNX_ASSIGN_OR_RETURN(const std::vector<int32_t> batches, ParseBatches(config.batch));
  LYNX_ASSIGN_OR_RETURN(const moe::Policy asked, moe::ParsePolicy(config.policy));
  if (asked.kind == moe::Policy::Kind::kAuto) {
    return absl::InvalidArgumentError("--policy: auto makes no plans itself");
  }
  LYNX_ASSIGN_OR_RETURN(const RouterTraces traces, ReadRouterTraces(config.traces));

  if (config.ep.empty() && !config.ep_spare.empty()) {
    return absl::InvalidArgumentError(
        "--ep-spare is of the ranks that share the experts: give --ep, too");
  }
  const std::vector<std::string> ep_spare =
      config.ep_spare.empty() ? std::vector<std::string>{"0", "1", "2"} : config.ep_spare;

  const auto policy_for = [&](const Shape& shape) -> absl::StatusOr<moe::Policy> {
    const moe::Policy policy =
        moe::WithPreset(asked, {.experts = shape.experts, .top_k = shape.top_k});
    LYNX_RETURN_IF_ERROR(moe::CheckPolicy(policy, shape.experts, shape.top_k));
    return policy;
  };
  std::vector<PlannerRow> rows;
  std::vector<RankRow> ranks;
  std::vector<PlacementRow> placements;
  for (const Shape& shape : shapes) {
    LYNX_ASSIGN_OR_RETURN(const moe::Policy policy, policy_for(shape));
    for (int32_t batch : batches) {
      rows.push_back(MeasurePlans(traces, policy, shape, batch, config.samples));
      for (const std::string& text : config.ep) {
        LYNX_ASSIGN_OR_RETURN(const int32_t ep, ParseRanks(text, shape));
        ranks.push_back(CountOnRanks(traces, policy, shape, batch, ep, config.samples));
        for (const std::string& spare_text : ep_spare) {
          LYNX_ASSIGN_OR_RETURN(const int32_t spare, ParseSpare(spare_text));
          placements.push_back(
              {shape, batch, ep, spare,
               CountPlacements(traces, policy, shape.experts, shape.top_k, batch, ep, spare)});
        }
      }
    }
  }
  const int32_t threads = config.threads > 0 ? config.threads : kernels::UsableCpus();
  std::vector<LayerRow> layers;
  if (config.layer) {
    LYNX_ASSIGN_OR_RETURN(const moe::Policy policy, policy_for({.experts = 64, .top_k = 8}));
    LYNX_ASSIGN_OR_RETURN(const LayerRow row, MeasureLayer(traces, policy, 16, threads));
    layers.push_back(row);
  }
  if (config.json) {
    PrintJson(config, traces, rows, ranks, placements, layers, out);
  } else {
    PrintTable(config, traces, rows, ranks, placements, layers, threads, out);
  }
  return absl::OkStatus();
}

}  // namespace

int RunPlannerBench(int argc, const char* const* argv, std::ostream& out, std::ostream& err) {
  PlannerBenchConfig config;
  config::FlagSet flags("lynx bench planner",
                        "Measures how long the expert assignment of one layer takes, on recorded "
                        "router logits.");
  flags.SetOutput(&out);
  flags.AddPositional("mode", &config.mode, "planner");
  flags.AddString("traces", &config.traces,
                  "Router logits, float32 [steps, layers, sequences, experts]; shape in the .json "
                  "beside the file");
  flags.AddString("policy", &config.policy, "name or name:key=value,...");
  flags.AddStrings("shapes", &config.shapes, "Experts x top-k, as 64x8");
  flags.AddStrings("batch", &config.batch, "Rows of a step");
  flags.AddStrings("ep", &config.ep,
                   "Numbers of ranks that share the experts: count those of the fullest rank, with "
                   "and without the policy's ep_balance (0 if it has none)");
  flags.AddStrings("ep-spare", &config.ep_spare,
                   "With --ep: further experts that each rank has memory for, as copies of others; "
                   "0,1,2 unless given");
  flags.AddInt("samples", &config.samples, {1, 1 << 20}, "Plans measured for each row");
  flags.AddInt("threads", &config.threads, {0, 1024},
               "Of the layer; 0: as many as the process may use");
  flags.AddBool("layer", &config.layer, "Measure a whole layer too (0.9 GiB)");
  flags.AddBool("json", &config.json, "Print JSON");

  return RunMode(flags, argc, argv, err, [&] { return Run(config, out); });
}

}  // namespace lynx::cli
