#include "services/cli/bench_planner.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/status_macros.h"
#include "common/config/flag_set.h"
#include "common/moe/planner.h"
#include "common/moe/presets.h"
#include "kernels/core/cpu_limit.h"
#include "kernels/core/exec_context.h"
#include "kernels/gemm/gemm.h"
#include "kernels/moe/expert_ffn.h"
#include "services/cli/engine_flags.h"

namespace lynx::cli {
namespace {

namespace fs = std::filesystem;

struct PlannerBenchConfig {
  std::string mode = "planner";
  std::string traces = "models/router-traces/mixed.bin";
  std::string policy = "lynx";
  std::vector<std::string> shapes = {"64x8", "128x8", "160x6", "256x8"};
  std::vector<std::string> batch = {"1", "2", "4", "8", "16", "32", "64", "128", "256"};
  int32_t samples = 400;
  int32_t threads = 0;
  bool layer = true;
  bool json = false;
};

// Router logits of decode steps: float32 [steps, layers, sequences, experts].
struct Traces {
  int64_t steps = 0;
  int64_t layers = 0;
  int64_t sequences = 0;
  int64_t experts = 0;
  std::vector<float> logits = {};

  std::span<const float> Row(int64_t step, int64_t layer, int64_t sequence) const {
    const int64_t row = (step * layers + layer) * sequences + sequence;
    return std::span(logits).subspan(static_cast<size_t>(row * experts),
                                     static_cast<size_t>(experts));
  }
};

// FILE.bin, with the shape in FILE.json beside it.
absl::StatusOr<Traces> ReadTraces(const fs::path& file) {
  fs::path description = file;
  description.replace_extension(".json");
  std::ifstream json(description);
  if (!json) return absl::NotFoundError(absl::StrCat("cannot read ", description.string()));
  const nlohmann::json parsed = nlohmann::json::parse(json, nullptr, /*allow_exceptions=*/false);
  if (parsed.is_discarded()) {
    return absl::InvalidArgumentError(absl::StrCat(description.string(), ": is not valid JSON"));
  }
  std::vector<int64_t> shape;
  if (parsed.is_object() && parsed.contains("shape") && parsed["shape"].is_array()) {
    for (const auto& size : parsed["shape"]) {
      shape.push_back(size.is_number_unsigned() && size < (1 << 20) ? size.get<int64_t>() : 0);
    }
  }
  if (shape.size() != 4 || std::find(shape.begin(), shape.end(), 0) != shape.end()) {
    return absl::InvalidArgumentError(
        absl::StrCat(description.string(),
                     ": shape must be four sizes: steps, layers, sequences, "
                     "experts"));
  }
  Traces traces{.steps = shape[0], .layers = shape[1], .sequences = shape[2], .experts = shape[3]};
  std::error_code error;
  const auto wanted = static_cast<double>(shape[0]) * static_cast<double>(shape[1]) *
                      static_cast<double>(shape[2]) * static_cast<double>(shape[3]) * 4;
  const auto size = fs::file_size(file, error);
  if (error || static_cast<double>(size) != wanted) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s has %s bytes, its description says %.0f", file.string(),
                        error ? error.message() : absl::StrCat(size), wanted));
  }
  traces.logits.resize(size / sizeof(float));
  std::ifstream data(file, std::ios::binary);
  if (!data.read(reinterpret_cast<char*>(traces.logits.data()),
                 static_cast<std::streamsize>(size))) {
    return absl::NotFoundError(absl::StrCat("cannot read ", file.string()));
  }
  // A row of them is no router's output, and would be planned as exact.
  const auto nan = std::find_if(traces.logits.begin(), traces.logits.end(),
                                [](float logit) { return std::isnan(logit); });
  if (nan != traces.logits.end()) {
    const int64_t row = (nan - traces.logits.begin()) / traces.experts;
    return absl::InvalidArgumentError(
        absl::StrFormat("%s: step %d, layer %d, sequence %d has a logit that is not a number",
                        file.string(), row / traces.sequences / traces.layers,
                        row / traces.sequences % traces.layers, row % traces.sequences));
  }
  return traces;
}

struct Shape {
  int32_t experts = 0;
  int32_t top_k = 0;
};

// One layer's logits [batch, experts], number `index` of as many as there are: each row another
// sequence, and beyond the traced ones, of another step. More experts than were traced come from
// the same token's further layers, joined and cut.
std::vector<float> Compose(const Traces& traces, const Shape& shape, int32_t batch, int64_t index) {
  std::vector<float> logits = {};
  logits.reserve(static_cast<size_t>(batch) * static_cast<size_t>(shape.experts));
  for (int64_t row = 0; row < batch; ++row) {
    const int64_t step = (index / traces.layers + row / traces.sequences) % traces.steps;
    const size_t end = logits.size() + static_cast<size_t>(shape.experts);
    for (int64_t layer = index; logits.size() < end; ++layer) {
      const auto part = traces.Row(step, layer % traces.layers, row % traces.sequences);
      const size_t count = std::min(part.size(), end - logits.size());
      logits.insert(logits.end(), part.begin(), part.begin() + static_cast<ptrdiff_t>(count));
    }
  }
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

double Quantile(std::vector<double> values, double share) {
  const auto at =
      values.begin() + static_cast<ptrdiff_t>(share * static_cast<double>(values.size() - 1));
  std::nth_element(values.begin(), at, values.end());
  return *at;
}

double Microseconds(std::chrono::steady_clock::duration time) {
  return std::chrono::duration<double, std::micro>(time).count();
}

PlannerRow MeasurePlans(const Traces& traces, const moe::Policy& policy, const Shape& shape,
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
  row.median_us = Quantile(warm, 0.5);
  row.p90_us = Quantile(std::move(warm), 0.9);
  row.cold_median_us = Quantile(std::move(cold), 0.5);
  return row;
}

// One MoE layer of OLMoE-1B-7B: what a plan's time is a share of.
constexpr int64_t kHidden = 2048;
constexpr int64_t kIntermediate = 1024;
constexpr Shape kOlmoe{.experts = 64, .top_k = 8};

// Milliseconds of the products of one layer (attention's four, the router, the experts that the
// policy leaves), bf16 weights, rows as traced. Attention over the cache, norms and the head are
// left out: a real step takes longer.
absl::StatusOr<double> MeasureLayer(const Traces& traces, const moe::Policy& policy, int32_t batch,
                                    int32_t threads) {
  kernels::ThreadTeam team(threads);
  const kernels::ExecContext ctx{.team = &team};
  const int64_t per_expert = 3 * kIntermediate * kHidden;
  const int64_t attention = 4 * kHidden * kHidden;
  std::vector<uint16_t> weights(
      static_cast<size_t>(kOlmoe.experts * per_expert + attention + kOlmoe.experts * kHidden));
  std::mt19937 rng(1);
  // bf16 values around 0.01 of either sign.
  for (uint16_t& weight : weights) {
    weight = static_cast<uint16_t>(0x3c00 | (rng() & 0x807f));
  }
  const auto matrix = [&](int64_t at, int64_t out, int64_t in) {  // Sizes that need no padding.
    return kernels::Matrix{
        .data = weights.data() + at, .dtype = DType::kBf16, .out = out, .in = in};
  };
  std::vector<kernels::ExpertWeights> experts;
  for (int64_t e = 0; e < kOlmoe.experts; ++e) {
    const int64_t at = e * per_expert;
    experts.push_back({.gate_up = matrix(at, 2 * kIntermediate, kHidden),
                       .down = matrix(at + 2 * kIntermediate * kHidden, kHidden, kIntermediate)});
  }
  const auto size = static_cast<size_t>(batch * kHidden);
  constexpr uint16_t kHalf = 0x3f00;  // 0.5 in bf16
  std::vector<uint16_t> x(size, kHalf);
  std::vector<float> y(size);
  kernels::ExpertFfnWorkspace workspace(batch, kOlmoe.top_k, kOlmoe.experts, kHidden, kIntermediate,
                                        DType::kBf16);
  moe::RoutingPlan plan(batch, kOlmoe.experts, kOlmoe.top_k);
  moe::Planner planner(batch, kOlmoe.experts, kOlmoe.top_k);
  const std::vector<const moe::Policy*> policies(static_cast<size_t>(batch), &policy);
  std::vector<double> times;
  for (int64_t i = 0; i < 10; ++i) {
    const std::vector<float> logits = Compose(traces, kOlmoe, batch, i);
    planner.MakePlan({.logits = logits,
                      .rows = batch,
                      .experts = kOlmoe.experts,
                      .top_k = kOlmoe.top_k,
                      .policies = policies},
                     plan);
    const auto start = std::chrono::steady_clock::now();
    for (int64_t j = 0; j < 5; ++j) {
      const bool router = j == 4;
      LYNX_RETURN_IF_ERROR(
          kernels::Gemm({.x = x.data(),
                         .w = matrix(kOlmoe.experts * per_expert + j * kHidden * kHidden,
                                     router ? kOlmoe.experts : kHidden, kHidden),
                         .y = y.data(),
                         .rows = batch,
                         .x_stride = kHidden,
                         .y_stride = kHidden,
                         .x_dtype = DType::kBf16},
                        ctx));
    }
    LYNX_RETURN_IF_ERROR(kernels::ExpertFfn({.x = x.data(),
                                             .experts = experts.data(),
                                             .ids = plan.ids().data(),
                                             .weights = plan.weights().data(),
                                             .y = y.data(),
                                             .rows = batch,
                                             .hidden = kHidden,
                                             .intermediate = kIntermediate,
                                             .expert_count = kOlmoe.experts,
                                             .top_k = plan.top_k(),
                                             .x_stride = kHidden,
                                             .y_stride = kHidden,
                                             .x_dtype = DType::kBf16},
                                            workspace, ctx));
    times.push_back(Microseconds(std::chrono::steady_clock::now() - start) / 1e3);
  }
  return Quantile(std::move(times), 0.5);
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

struct LayerRow {
  int32_t batch = 0;
  double layer_ms = 0;
  double plan_us = 0;
};

void PrintTable(const PlannerBenchConfig& config, const Traces& traces,
                std::span<const PlannerRow> rows, std::span<const LayerRow> layers, int32_t threads,
                std::ostream& out) {
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
  for (const LayerRow& row : layers) {
    out << absl::StrFormat(
        "one layer shaped as OLMoE-1B-7B, batch %d, %d threads: %.2f ms; its plan (cold) is "
        "%.3f %% of that\n",
        row.batch, threads, row.layer_ms, row.plan_us / row.layer_ms / 10);
  }
}

void PrintJson(const PlannerBenchConfig& config, const Traces& traces,
               std::span<const PlannerRow> rows, std::span<const LayerRow> layers,
               std::ostream& out) {
  nlohmann::json json{{"policy", config.policy},
                      {"rows", nlohmann::json::array()},
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
  for (const LayerRow& row : layers) {
    json["layers"].push_back({{"shape", "OLMoE-1B-7B"},
                              {"batch", row.batch},
                              {"layer_ms", row.layer_ms},
                              {"plan_share", row.plan_us / row.layer_ms / 1e3}});
  }
  out << json.dump() << "\n";
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
  LYNX_ASSIGN_OR_RETURN(const Traces traces, ReadTraces(config.traces));

  const auto policy_for = [&](const Shape& shape) -> absl::StatusOr<moe::Policy> {
    const moe::Policy policy =
        moe::WithPreset(asked, {.experts = shape.experts, .top_k = shape.top_k});
    LYNX_RETURN_IF_ERROR(moe::CheckPolicy(policy, shape.experts, shape.top_k));
    return policy;
  };
  std::vector<PlannerRow> rows;
  for (const Shape& shape : shapes) {
    LYNX_ASSIGN_OR_RETURN(const moe::Policy policy, policy_for(shape));
    for (int32_t batch : batches) {
      rows.push_back(MeasurePlans(traces, policy, shape, batch, config.samples));
    }
  }
  const int32_t threads = config.threads > 0 ? config.threads : kernels::UsableCpus();
  std::vector<LayerRow> layers;
  if (config.layer) {
    LYNX_ASSIGN_OR_RETURN(const moe::Policy policy, policy_for(kOlmoe));
    const int32_t batch = 16;
    LYNX_ASSIGN_OR_RETURN(const double ms, MeasureLayer(traces, policy, batch, threads));
    layers.push_back(
        {.batch = batch,
         .layer_ms = ms,
         .plan_us = MeasurePlans(traces, policy, kOlmoe, batch, config.samples).cold_median_us});
  }
  if (config.json) {
    PrintJson(config, traces, rows, layers, out);
  } else {
    PrintTable(config, traces, rows, layers, threads, out);
  }
  return absl::OkStatus();
}

}  // namespace

int RunBenchPlanner(int argc, const char* const* argv, std::ostream& out, std::ostream& err) {
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
  flags.AddInt("samples", &config.samples, {1, 1 << 20}, "Plans measured for each row");
  flags.AddInt("threads", &config.threads, {0, 1024},
               "Of the layer; 0: as many as the process may use");
  flags.AddBool("layer", &config.layer, "Measure a whole layer too (0.8 GiB)");
  flags.AddBool("json", &config.json, "Print JSON");

  const absl::StatusOr<config::ParseOutcome> outcome = flags.Parse(argc, argv);
  if (outcome.ok() && *outcome == config::ParseOutcome::kPrinted) return 0;
  absl::Status status = outcome.status();
  if (status.ok()) status = Run(config, out);
  if (status.ok()) return 0;
  err << "lynx bench planner: " << status.message() << "\n";
  return absl::IsInvalidArgument(status) ? 2 : 1;
}

}  // namespace lynx::cli
