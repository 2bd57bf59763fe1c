#include "services/cli/bench/model_bench.h"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/base/available_memory.h"
#include "common/base/dtype.h"
#include "common/base/status_macros.h"
#include "common/config/flag_set.h"
#include "common/kv/block_pool.h"
#include "common/model/model_runner.h"
#include "common/model/model_spec.h"
#include "kernels/core/cpu_limit.h"
#include "kernels/core/exec_context.h"
#include "kernels/core/thread_team.h"
#include "services/cli/bench/arithmetic_rate.h"
#include "services/cli/bench/bench_report.h"
#include "services/cli/bench/memory_need.h"
#include "services/cli/bench/model_shape.h"
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

struct ModelBenchConfig {
  std::string mode = {};
  std::string model = {};
  std::string shape = {};
  std::string traces = "models/router-traces/mixed.bin";
  int32_t layers = 0;
  std::vector<std::string> batch = {"1", "4", "8", "16"};
  std::vector<std::string> context = {"512"};
  std::vector<std::string> prompt_rows = {"0"};
  std::string mixed_steps = "exact";
  std::vector<std::string> policy = {"exact"};
  int32_t chunk = 512;
  int32_t steps = 8;
  int32_t rounds = 5;
  int32_t threads = 0;
  std::string isa = "auto";
  std::string compute_dtype = "bf16";
  std::string kv_dtype = "bf16";
  int64_t read_buffer = 0;
  int32_t seed = 1;
  bool json = false;

  bool decode() const { return mode == "decode"; }
};

absl::StatusOr<ModelShape> ReadModel(const ModelBenchConfig& config) {
  ModelShape model{.name = config.model};
  if (config.shape.empty()) {
    if (config.layers > 0) return absl::InvalidArgumentError("--layers is for --shape alone");
    LYNX_ASSIGN_OR_RETURN(model.spec, model::LoadModelSpec(config.model));
    return model;
  }
  LYNX_ASSIGN_OR_RETURN(model, ShapeOfFlag(config.shape));
  if (config.layers > model.spec.layers) {
    return absl::InvalidArgumentError(
        absl::StrFormat("--layers: %d, the shape has %d", config.layers, model.spec.layers));
  }
  if (config.layers > 0) KeepLayers(config.layers, model.spec);
  return model;
}

// A model with weights of its own has no replay.
absl::StatusOr<SyntheticEngine> Start(const ModelBenchConfig& config, const ModelShape& model,
                                      model::RunnerOptions options) {
  if (!config.shape.empty()) {
    LYNX_ASSIGN_OR_RETURN(RouterTraces traces, ReadRouterTraces(config.traces));
    return StartSyntheticEngine(model.spec, options, std::move(traces),
                                static_cast<uint64_t>(config.seed));
  }
  SyntheticEngine engine;
  options.model_dir = config.model;
  LYNX_ASSIGN_OR_RETURN(engine.runner, model::ModelRunner::Load(options));
  return engine;
}

absl::Status Run(const ModelBenchConfig& config, std::ostream& out) {
  LYNX_ASSIGN_OR_RETURN(const std::vector<int32_t> batches, ParseBatches(config.batch));
  LYNX_ASSIGN_OR_RETURN(const std::vector<int32_t> contexts,
                        ParseCounts("--context", config.context, 1 << 20));
  LYNX_ASSIGN_OR_RETURN(const std::vector<int32_t> prompt_rows,
                        ParseCounts("--prompt-rows", config.prompt_rows, 1 << 16, /*least=*/0));
  LYNX_RETURN_IF_ERROR(CheckReadBuffer(config.read_buffer));
  if (config.model.empty() == config.shape.empty()) {
    return absl::InvalidArgumentError("one of --model and --shape is wanted");
  }
  LYNX_ASSIGN_OR_RETURN(ModelShape model, ReadModel(config));
  LYNX_ASSIGN_OR_RETURN(const std::vector<EvalPolicy> policies,
                        ParsePolicies(config.policy, model::FactsOf(model.spec, model.name)));
  const int32_t batch = *std::max_element(batches.begin(), batches.end());
  const int32_t context = *std::max_element(contexts.begin(), contexts.end());
  const int32_t beside = *std::max_element(prompt_rows.begin(), prompt_rows.end());
  if (beside > 0 && !config.decode()) {
    return absl::InvalidArgumentError("--prompt-rows is for decode alone");
  }
  if (beside > *std::min_element(contexts.begin(), contexts.end())) {
    return absl::InvalidArgumentError("--prompt-rows: more than the --context has");
  }
  if (context >= model.spec.max_positions && !config.shape.empty()) {
    model.notes.push_back(
        absl::StrCat("runs beyond the ", model.spec.max_positions, " positions of the model"));
    model.spec.max_positions = context + 1;
  }
  if (context >= model.spec.max_positions) {
    return absl::InvalidArgumentError(
        absl::StrCat("--context: ", context, ", the model holds ", model.spec.max_positions - 1));
  }

  const int32_t threads = config.threads > 0 ? config.threads : kernels::UsableCpus();
  const bool prompts = !config.decode() || config.shape.empty();
  model::RunnerOptions options;
  options.compute_dtype = DTypeNamed(config.compute_dtype).value();
  options.kv_dtype = DTypeNamed(config.kv_dtype).value();
  const kv::KvGroups groups = model::KvLayoutOf(model.spec, options.kv_dtype).groups;
  // Of up to 2^16 blocks, layers and sequences.
  const int64_t kv_blocks = kv::BlocksFor(int64_t{context} + 1) * groups.count() *
                            (int64_t{batch} + (beside > 0 ? 1 : 0));
  options.max_step_rows = batch + beside;
  if (prompts)
    options.max_step_rows = std::max(options.max_step_rows, std::min(config.chunk, context));
  options.remap_mixed_steps = config.mixed_steps == "piggyback";
  options.max_step_logits = batch;
  options.threads = threads;
  options.isa = kernels::IsaNamed(config.isa);
  const model::MemoryNeed need = model::NeedOf(model.spec, WeightBytes(model.spec),
                                               {.kv_dtype = options.kv_dtype,
                                                .kv_blocks = kv_blocks,
                                                .rows = options.max_step_rows,
                                                .logits_rows = options.max_step_logits,
                                                .threads = threads});
  const int64_t available = AvailableMemory();
  const int64_t read_buffer =
      config.read_buffer > 0 ? config.read_buffer
                             : DefaultReadBuffer(std::max<int64_t>(0, available - need.total()));
  LYNX_RETURN_IF_ERROR(CheckFits(need, read_buffer, model.spec, available));
  if (kv_blocks > std::numeric_limits<int32_t>::max()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--batch and --context: ", kv_blocks, " KV blocks"));
  }
  options.kv_blocks = static_cast<int32_t>(kv_blocks);

  LYNX_ASSIGN_OR_RETURN(const SyntheticEngine engine, Start(config, model, options));
  LYNX_ASSIGN_OR_RETURN(const std::unique_ptr<kernels::ThreadTeam> team,
                        kernels::ThreadTeam::Create(threads));
  LYNX_ASSIGN_OR_RETURN(const std::unique_ptr<ReadBandwidth> bandwidth,
                        ReadBandwidth::Create(read_buffer, *team));
  ArithmeticRate arithmetic(options.compute_dtype, *team, options.isa.value_or(kernels::BestIsa()));
  kv::BlockPool pool(options.kv_blocks);
  StepBench bench({.rounds = config.rounds,
                   .steps = config.steps,
                   .chunk = config.chunk,
                   .seed = static_cast<uint32_t>(config.seed),
                   .made_up_prompts = engine.replay != nullptr},
                  *engine.runner, engine.replay.get(), pool, *bandwidth, arithmetic);
  BenchReport report{.mode = config.mode,
                     .model = model.name,
                     .layers = model.spec.layers,
                     .threads = threads,
                     .numeric_class = engine.runner->numeric_class(),
                     .notes = std::move(model.notes),
                     .read_buffer_bytes = read_buffer};
  for (int32_t tokens : contexts) {
    for (int32_t rows : batches) {
      if (!config.decode()) {
        LYNX_ASSIGN_OR_RETURN(BenchResult result, bench.Prefill(rows, tokens));
        report.results.push_back(std::move(result));
        continue;
      }
      for (int32_t also : prompt_rows) {
        LYNX_ASSIGN_OR_RETURN(std::vector<BenchResult> results,
                              bench.Decode(rows, tokens, also, policies));
        std::move(results.begin(), results.end(), std::back_inserter(report.results));
      }
    }
  }
  if (auto note = CacheNote(read_buffer, LastLevelCacheBytes())) {
    report.notes.push_back(*std::move(note));
  }
  report.bandwidth_gb_s = Median(bench.bandwidths()) / 1e9;
  report.arithmetic_gflop_s = Quantile(bench.arithmetic_rates(), 1) / 1e9;
  report.arithmetic_isa = std::string(kernels::Name(arithmetic.isa()));
  config.json ? PrintJson(report, out) : PrintTable(report, out);
  return absl::OkStatus();
}

}  // namespace

int RunModelBench(int argc, const char* const* argv, std::ostream& out, std::ostream& err) {
  ModelBenchConfig config{.mode = argv[1]};
  config::FlagSet flags("lynx bench decode|prefill",
                        "Measures one engine: `lynx bench decode --shape olmoe-1b-7b`. Every "
                        "sequence has its own random tokens; read bandwidth is measured in "
                        "between.");
  flags.SetOutput(&out);
  flags.AddPositional("mode", &config.mode, "decode or prefill");
  flags.AddString("model", &config.model, "Hugging Face folder of the model");
  flags.AddString(
      "shape", &config.shape,
      absl::StrCat("Random weights of a model's dimensions, routed as --traces say: ",
                   absl::StrJoin(ShapeNames(), ", "), ", or the path of a config.json"));
  flags.AddInt("layers", &config.layers, {0, 10000}, "Layers of the shape to run; 0: all");
  flags.AddString(
      "traces", &config.traces,
      "Router logits that a shape replays, float32 [steps, layers, sequences, experts]; "
      "shape in the .json beside the file");
  flags.AddStrings("batch", &config.batch, "Numbers of sequences to measure");
  flags.AddStrings("context", &config.context, "Prompt tokens of each sequence to measure");
  flags.AddStrings("prompt-rows", &config.prompt_rows,
                   "Rows of a prompt to compute beside those of decode in each step");
  flags.AddChoice("mixed-steps", &config.mixed_steps, {"exact", "piggyback"},
                  "What such steps do, as lynx-decode's --lynx-mixed-steps");
  flags.AddStrings("policy", &config.policy,
                   "Expert policies of decode to measure in turn, as lynx eval's --policies");
  flags.AddInt("chunk", &config.chunk, {1, 1 << 16}, "Prompt tokens in one step");
  flags.AddInt("steps", &config.steps, {1, 10000}, "Decode steps of a policy in a round");
  flags.AddInt("rounds", &config.rounds, {1, 1000}, "Rounds; each measures read bandwidth first");
  flags.AddInt("threads", &config.threads, {0, 1024}, "Threads; 0: as many as the process may use");
  flags.AddChoice("isa", &config.isa, kernels::IsaChoices(),
                  "Instruction set of the kernels; auto: the widest this machine has");
  flags.AddChoice("compute-dtype", &config.compute_dtype, {"f32", "bf16"}, "Arithmetic");
  flags.AddChoice("kv-dtype", &config.kv_dtype, {"f32", "bf16"}, "KV cache");
  flags.AddBytes("read-buffer", &config.read_buffer, {0},
                 "What the bandwidth measurement reads; 0: 2 GiB, or half of the free memory if "
                 "that is less");
  flags.AddInt("seed", &config.seed, {0}, "Of random tokens and weights");
  flags.AddBool("json", &config.json, "Print JSON");

  return RunMode(flags, argc, argv, err, [&] { return Run(config, out); });
}

}  // namespace lynx::cli
