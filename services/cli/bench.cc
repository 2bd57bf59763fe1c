#include "services/cli/bench.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <memory>
#include <numeric>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/check.h"
#include "common/base/status_macros.h"
#include "common/config/flag_set.h"
#include "common/engine/sampler.h"
#include "common/kv/block_pool.h"
#include "common/model/model_runner.h"
#include "common/model/model_spec.h"
#include "kernels/core/cpu_limit.h"
#include "services/cli/bench_planner.h"
#include "services/cli/engine_flags.h"
#include "services/cli/read_bandwidth.h"

namespace lynx::cli {
namespace {

constexpr int kReadPasses = 2;  // Of the bandwidth buffer, in each round.

struct BenchConfig {
  std::string mode = "decode";
  std::string model;
  std::vector<std::string> batch = {"1", "4", "8", "16"};
  int32_t context = 64;
  int32_t chunk = 256;
  int32_t steps = 8;
  int32_t rounds = 5;
  int32_t threads = 0;
  std::string compute_dtype = "bf16";
  std::string kv_dtype = "bf16";
  int64_t read_buffer = int64_t{512} << 20;
  int32_t seed = 1;
  bool json = false;
};

struct BenchRow {
  int32_t batch = 0;
  double tokens_per_second = 0;
  double step_median_seconds = 0;
  double step_min_seconds = 0;
  double weight_bytes = 0;  // A step, mean.
  double kv_bytes = 0;
  double active_experts = 0;   // A MoE layer and step, mean.
  double read_bandwidth = 0;   // Bytes per second, median of the passes between the steps.
  double bandwidth_share = 0;  // (weight + KV bytes) / step time / read bandwidth.
};

double Median(std::vector<double> values) {
  LYNX_CHECK(!values.empty());
  const auto middle = values.begin() + static_cast<ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

// What some steps cost.
struct StepCosts {
  std::vector<double> seconds;  // One a step.
  double weight_bytes = 0;
  double kv_bytes = 0;
  double active_experts = 0;  // Summed over MoE layers, of which there were moe_layers.
  double moe_layers = 0;
};

// The bench of one batch size on one loaded model.
class Bench {
 public:
  Bench(const BenchConfig& config, model::ModelRunner& runner, kv::BlockPool& pool,
        ReadBandwidth& bandwidth, int32_t batch)
      : config_(config),
        runner_(runner),
        pool_(pool),
        bandwidth_(bandwidth),
        batch_(batch),
        sampler_(runner.spec().vocab_size),
        rng_(static_cast<uint32_t>(config.seed)) {}

  absl::StatusOr<BenchRow> Run() {
    for (int32_t i = 0; i < batch_; ++i) {
      LYNX_ASSIGN_OR_RETURN(kv::BlockLease lease,
                            pool_.Acquire(kv::BlocksFor(int64_t{config_.context} + 1)));
      leases_.push_back(std::move(lease));
    }
    LYNX_RETURN_IF_ERROR(Prefill(nullptr));
    const bool decode = config_.mode == "decode";
    StepCosts costs;
    std::vector<double> reads;
    std::vector<double> prefills;  // Seconds of each whole prefill.
    for (int32_t round = 0; round < config_.rounds; ++round) {
      for (int pass = 0; pass < kReadPasses; ++pass) reads.push_back(bandwidth_.Measure());
      // Reading has emptied the caches; a step fills them as a running server's would be.
      LYNX_RETURN_IF_ERROR(DecodeStep(nullptr));
      if (decode) {
        for (int32_t i = 0; i < config_.steps; ++i) LYNX_RETURN_IF_ERROR(DecodeStep(&costs));
      } else {
        const auto before = static_cast<ptrdiff_t>(costs.seconds.size());
        LYNX_RETURN_IF_ERROR(Prefill(&costs));
        prefills.push_back(
            std::accumulate(costs.seconds.begin() + before, costs.seconds.end(), 0.0));
      }
    }

    const auto steps = static_cast<double>(costs.seconds.size());
    BenchRow row{.batch = batch_};
    row.step_median_seconds = Median(costs.seconds);
    row.step_min_seconds = *std::min_element(costs.seconds.begin(), costs.seconds.end());
    row.tokens_per_second =
        decode ? batch_ / row.step_median_seconds
               : static_cast<double>(config_.context) * batch_ / Median(std::move(prefills));
    row.weight_bytes = costs.weight_bytes / steps;
    row.kv_bytes = costs.kv_bytes / steps;
    row.active_experts = costs.moe_layers > 0 ? costs.active_experts / costs.moe_layers : 0;
    row.read_bandwidth = Median(std::move(reads));
    row.bandwidth_share =
        (row.weight_bytes + row.kv_bytes) / row.step_median_seconds / row.read_bandwidth;
    return row;
  }

 private:
  std::vector<TokenId> RandomTokens(int32_t count) {
    std::uniform_int_distribution<TokenId> token(0, runner_.spec().vocab_size - 1);
    std::vector<TokenId> tokens(static_cast<size_t>(count));
    for (TokenId& t : tokens) t = token(rng_);
    return tokens;
  }

  // Computes `context` tokens of every sequence, one sequence after the other, in chunks.
  absl::Status Prefill(StepCosts* costs) {
    for (const kv::BlockLease& lease : leases_) {
      const std::vector<TokenId> tokens = RandomTokens(config_.context);
      for (int32_t start = 0; start < config_.context; start += config_.chunk) {
        const int32_t count = std::min(config_.chunk, config_.context - start);
        model::SequenceRows rows;
        rows.tokens =
            std::span(tokens).subspan(static_cast<size_t>(start), static_cast<size_t>(count));
        rows.start = start;
        rows.blocks = lease.blocks();
        rows.logits_rows = start + count == config_.context ? 1 : 0;
        LYNX_RETURN_IF_ERROR(Step({&rows, 1}, costs));
      }
    }
    return absl::OkStatus();
  }

  // One token for each sequence, always at position `context`, so that every step costs the same.
  absl::Status DecodeStep(StepCosts* costs) {
    const std::vector<TokenId> tokens = RandomTokens(batch_);
    std::vector<model::SequenceRows> rows(leases_.size());
    for (size_t i = 0; i < leases_.size(); ++i) {
      rows[i].tokens = std::span(tokens).subspan(i, 1);
      rows[i].start = config_.context;
      rows[i].blocks = leases_[i].blocks();
      rows[i].logits_rows = 1;
      rows[i].decode = true;
    }
    return Step(rows, costs);
  }

  // The time includes a greedy choice for every row of logits. `costs` may be null.
  absl::Status Step(std::span<const model::SequenceRows> rows, StepCosts* costs) {
    const auto start = std::chrono::steady_clock::now();
    LYNX_RETURN_IF_ERROR(runner_.Step(rows, nullptr));
    const auto vocab_size = static_cast<size_t>(runner_.spec().vocab_size);
    const std::span<const float> logits = runner_.logits();
    for (size_t at = 0; at < logits.size(); at += vocab_size) {
      LYNX_RETURN_IF_ERROR(
          sampler_.Sample(logits.subspan(at, vocab_size), greedy_, no_history_, sampled_));
    }
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    if (costs == nullptr) return absl::OkStatus();
    const model::StepStats& stats = runner_.stats();
    costs->seconds.push_back(seconds.count());
    costs->weight_bytes += static_cast<double>(stats.weight_bytes_read);
    costs->kv_bytes += static_cast<double>(stats.kv_bytes_read);
    for (const moe::PlanStats& plan : stats.plans) {
      costs->active_experts += plan.experts;
      costs->moe_layers += plan.experts > 0 ? 1 : 0;
    }
    return absl::OkStatus();
  }

  const BenchConfig& config_;
  model::ModelRunner& runner_;
  kv::BlockPool& pool_;
  ReadBandwidth& bandwidth_;
  const int32_t batch_;
  engine::Sampler sampler_;
  const engine::SamplingParams greedy_{.temperature = 0};
  const engine::SamplerState no_history_{greedy_, {}};
  engine::SampledToken sampled_;
  std::mt19937 rng_;
  std::vector<kv::BlockLease> leases_;
};

void PrintTable(const std::string& title, std::span<const BenchRow> rows, std::ostream& out) {
  out << title << "\n"
      << absl::StrFormat("%6s %11s %11s %11s %11s %9s %8s %9s %7s\n", "batch", "tokens/s",
                         "step ms", "min ms", "weight MB", "KV MB", "experts", "read GB/s",
                         "share");
  for (const BenchRow& row : rows) {
    out << absl::StrFormat("%6d %11.1f %11.3f %11.3f %11.2f %9.3f %8.1f %9.1f %6.0f%%\n", row.batch,
                           row.tokens_per_second, row.step_median_seconds * 1e3,
                           row.step_min_seconds * 1e3, row.weight_bytes / 1e6, row.kv_bytes / 1e6,
                           row.active_experts, row.read_bandwidth / 1e9, row.bandwidth_share * 100);
  }
}

void PrintJson(const BenchConfig& config, const std::string& numeric_class,
               std::span<const BenchRow> rows, std::ostream& out) {
  out << absl::StrFormat("{\"mode\":\"%s\",\"context\":%d,\"chunk\":%d,\"numeric_class\":\"%s\"",
                         config.mode, config.context, config.chunk, numeric_class)
      << ",\"rows\":[";
  for (size_t i = 0; i < rows.size(); ++i) {
    const BenchRow& row = rows[i];
    out << (i == 0 ? "" : ",")
        << absl::StrFormat(
               "{\"batch\":%d,\"tokens_per_second\":%.6g,\"step_median_seconds\":%.6g,"
               "\"step_min_seconds\":%.6g,\"weight_bytes_per_step\":%.0f,"
               "\"kv_bytes_per_step\":%.0f,\"active_experts\":%.3f,"
               "\"read_bytes_per_second\":%.6g,\"bandwidth_share\":%.4f}",
               row.batch, row.tokens_per_second, row.step_median_seconds, row.step_min_seconds,
               row.weight_bytes, row.kv_bytes, row.active_experts, row.read_bandwidth,
               row.bandwidth_share);
  }
  out << "]}\n";
}

absl::Status Run(const BenchConfig& config, const std::vector<int32_t>& batches,
                 std::ostream& out) {
  const int32_t largest = *std::max_element(batches.begin(), batches.end());
  const int32_t threads = config.threads > 0 ? config.threads : kernels::UsableCpus();
  const int64_t blocks = kv::BlocksFor(int64_t{config.context} + 1) * largest;
  LYNX_ASSIGN_OR_RETURN(const std::unique_ptr<model::ModelRunner> runner,
                        model::ModelRunner::Load({.model_dir = config.model,
                                                  .compute_dtype = DTypeOf(config.compute_dtype),
                                                  .kv_dtype = DTypeOf(config.kv_dtype),
                                                  .kv_blocks = static_cast<int32_t>(blocks),
                                                  .max_step_rows = std::max(largest, config.chunk),
                                                  .max_step_logits = largest,
                                                  .threads = threads}));
  if (config.context + 1 > runner->spec().max_positions) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--context: ", config.context, ", the model holds ", runner->spec().max_positions - 1));
  }
  kv::BlockPool pool(static_cast<int32_t>(blocks));
  LYNX_ASSIGN_OR_RETURN(const std::unique_ptr<ReadBandwidth> bandwidth,
                        ReadBandwidth::Create(config.read_buffer, threads));
  std::vector<BenchRow> rows;
  for (int32_t batch : batches) {
    LYNX_ASSIGN_OR_RETURN(const BenchRow row,
                          Bench(config, *runner, pool, *bandwidth, batch).Run());
    rows.push_back(row);
  }
  if (config.json) {
    PrintJson(config, runner->numeric_class(), rows, out);
  } else {
    PrintTable(absl::StrCat(config.mode, ", context ", config.context, ", ", threads, " threads, ",
                            runner->numeric_class()),
               rows, out);
  }
  return absl::OkStatus();
}

}  // namespace

int RunBench(int argc, const char* const* argv, std::ostream& out, std::ostream& err) {
  if (argc > 1 && std::string_view(argv[1]) == "planner") {
    return RunBenchPlanner(argc, argv, out, err);
  }
  BenchConfig config;
  config::FlagSet flags("lynx bench",
                        "Measures one engine: `lynx bench decode --model DIR`. Every sequence has "
                        "its own random tokens; read bandwidth is measured in between.");
  flags.SetOutput(&out);
  flags.AddPositional("mode", &config.mode,
                      "decode, prefill, or planner (see `lynx bench planner --help`)");
  flags.AddString("model", &config.model, "Hugging Face folder of the model");
  flags.AddStrings("batch", &config.batch, "Numbers of sequences to measure");
  flags.AddInt("context", &config.context, {1, 1 << 20}, "Prompt tokens of each sequence");
  flags.AddInt("chunk", &config.chunk, {1, 1 << 16}, "Prompt tokens in one step");
  flags.AddInt("steps", &config.steps, {1, 10000}, "Decode steps in a round");
  flags.AddInt("rounds", &config.rounds, {1, 1000}, "Rounds; each measures read bandwidth first");
  flags.AddInt("threads", &config.threads, {0, 1024}, "Threads; 0: as many as the process may use");
  flags.AddChoice("compute-dtype", &config.compute_dtype, {"f32", "bf16"}, "Arithmetic");
  flags.AddChoice("kv-dtype", &config.kv_dtype, {"f32", "bf16"}, "KV cache");
  flags.AddBytes("read-buffer", &config.read_buffer, {int64_t{1} << 20},
                 "What the bandwidth measurement reads; much larger than the caches");
  flags.AddInt("seed", &config.seed, {0}, "Of the random tokens");
  flags.AddBool("json", &config.json, "Print JSON");

  const absl::StatusOr<config::ParseOutcome> outcome = flags.Parse(argc, argv);
  if (outcome.ok() && *outcome == config::ParseOutcome::kPrinted) return 0;
  absl::Status status = outcome.status();
  if (status.ok() && config.mode != "decode" && config.mode != "prefill") {
    status = absl::InvalidArgumentError(
        absl::StrCat("mode is '", config.mode, "', wanted decode, prefill or planner"));
  }
  if (status.ok() && config.model.empty()) {
    status = absl::InvalidArgumentError("--model is missing");
  }
  absl::StatusOr<std::vector<int32_t>> batches;
  if (status.ok()) {
    batches = ParseBatches(config.batch);
    status = batches.status();
  }
  if (!status.ok()) {
    err << "lynx bench: " << status.message() << "\n";
    return 2;
  }
  if (status = Run(config, *batches, out); !status.ok()) {
    err << "lynx bench: " << status.message() << "\n";
    return 1;
  }
  return 0;
}

}  // namespace lynx::cli
