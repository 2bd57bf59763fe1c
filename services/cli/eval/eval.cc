#include "services/cli/eval/eval.h"

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/dtype.h"
#include "common/base/file.h"
#include "common/base/status_macros.h"
#include "common/config/flag_set.h"
#include "common/kv/block_pool.h"
#include "common/kv/kv_layout.h"
#include "common/model/model_runner.h"
#include "common/model/model_spec.h"
#include "common/text/chat_template.h"
#include "common/text/model_files.h"
#include "common/text/tokenizer.h"
#include "services/cli/engine_flags.h"
#include "services/cli/eval/eval_data.h"
#include "services/cli/eval/pareto_plot.h"
#include "services/cli/eval/policy_list.h"
#include "services/cli/eval/prefilled_prompts.h"
#include "services/cli/eval/progress.h"
#include "services/cli/eval/report.h"
#include "services/cli/eval/results.h"
#include "services/cli/eval/task_eval.h"
#include "services/cli/eval/text_eval.h"

namespace lynx::cli {
namespace {

constexpr int32_t kPrefillRows = 512;  // Of one step.

struct EvalConfig {
  std::string model;
  std::string eval_dir = "models/eval";
  std::vector<std::string> batch = {"8", "16", "32"};
  std::vector<std::string> policies = {"all"};
  std::string json;
  std::string svg;
  int32_t windows = 1000;
  int32_t context = 128;
  int32_t positions = 48;
  int32_t tasks = 1000;
  std::string kv = "own";
  int64_t kv_memory = int64_t{1} << 30;
  int32_t threads = 0;
  std::string compute_dtype = "bf16";
  std::string kv_dtype = "bf16";
};

// So that minutes of work do not end in a file that cannot be written.
absl::Status CheckFolder(const std::string& file) {
  if (file.empty()) return absl::OkStatus();
  std::error_code error;
  if (std::filesystem::is_directory(file, error)) {
    return absl::InvalidArgumentError(absl::StrCat(file, ": is a folder, wanted a file to write"));
  }
  const std::filesystem::path folder = std::filesystem::absolute(file, error).parent_path();
  if (!std::filesystem::is_directory(folder, error)) {
    return absl::NotFoundError(absl::StrCat(file, ": no folder ", folder.string()));
  }
  return absl::OkStatus();
}

// All that an evaluation needs, loaded and checked.
class Evaluation {
 public:
  static absl::StatusOr<std::unique_ptr<Evaluation>> Load(const EvalConfig& config,
                                                          std::vector<int32_t> batches) {
    auto evaluation = std::make_unique<Evaluation>(config, std::move(batches));
    LYNX_RETURN_IF_ERROR(evaluation->LoadAll());
    return evaluation;
  }

  Evaluation(const EvalConfig& config, std::vector<int32_t> batches)
      : config_(config), batches_(std::move(batches)) {}

  absl::Status Run(std::ostream& out, std::ostream& err) {
    if (texts_.too_short > 0) {
      err << absl::StrCat("lynx eval: left out ", texts_.too_short,
                          " windows of text that are too short\n");
    }
    Progress progress(err, SteadyClock::Instance());
    const EvalSetup setup{.model = config_.model,
                          .numeric_class = runner_->numeric_class(),
                          .context = config_.context,
                          .positions = config_.positions,
                          .exact_kv = config_.kv == "exact",
                          .windows = static_cast<int64_t>(texts_.windows.size()),
                          .task_items = static_cast<int64_t>(tasks_.items.size())};
    std::vector<EvalResult> results;
    for (int32_t batch : batches_) {
      LYNX_ASSIGN_OR_RETURN(std::vector<EvalResult> of_batch, RunBatch(batch, progress));
      PrintTables(setup, of_batch, out);
      out << std::flush;
      for (EvalResult& result : of_batch) results.push_back(std::move(result));
    }
    if (!config_.json.empty()) {
      LYNX_RETURN_IF_ERROR(WriteFileAtomically(config_.json, ToJson(setup, results)));
    }
    if (!config_.svg.empty()) LYNX_RETURN_IF_ERROR(DrawPareto(results, config_.svg));
    return absl::OkStatus();
  }

 private:
  absl::Status LoadAll() {
    if (!config_.svg.empty()) LYNX_RETURN_IF_ERROR(CheckPlotting());
    for (const std::string& file : {config_.json, config_.svg}) {
      LYNX_RETURN_IF_ERROR(CheckFolder(file));
    }
    LYNX_ASSIGN_OR_RETURN(const model::ModelSpec spec, model::LoadModelSpec(config_.model));
    const int32_t window_tokens = config_.context + config_.positions + 1;
    if (config_.windows > 0 && window_tokens > spec.max_positions) {
      return absl::InvalidArgumentError(absl::StrCat("--context and --positions: ", window_tokens,
                                                     " tokens in all, the model holds ",
                                                     spec.max_positions));
    }
    const std::string name = std::filesystem::path(config_.model).filename().string();
    LYNX_ASSIGN_OR_RETURN(policies_,
                          ParsePolicies(config_.policies, {.model_type = spec.model_type,
                                                           .name = name,
                                                           .experts = spec.experts,
                                                           .top_k = spec.experts_per_token,
                                                           .hidden_size = spec.hidden_size}));
    LYNX_RETURN_IF_ERROR(LoadData(window_tokens));
    LYNX_RETURN_IF_ERROR(LoadRunner(spec));
    return absl::OkStatus();
  }

  absl::Status LoadData(int32_t window_tokens) {
    LYNX_ASSIGN_OR_RETURN(tokenizer_, text::Tokenizer::Load(config_.model));
    if (config_.windows > 0) {
      LYNX_ASSIGN_OR_RETURN(
          texts_, LoadTexts(config_.eval_dir, *tokenizer_, config_.windows, window_tokens));
    }
    if (config_.tasks > 0) {
      LYNX_ASSIGN_OR_RETURN(const std::unique_ptr<text::ChatTemplate> chat_template,
                            text::ChatTemplate::Load(config_.model));
      LYNX_ASSIGN_OR_RETURN(
          tasks_, LoadTasks(config_.eval_dir, *tokenizer_, *chat_template, config_.tasks));
      LYNX_ASSIGN_OR_RETURN(stop_tokens_, text::LoadStopTokenIds(config_.model, *tokenizer_));
    }
    return absl::OkStatus();
  }

  absl::Status LoadRunner(const model::ModelSpec& spec) {
    const kv::KvLayout layout = model::KvLayoutOf(spec, DTypeNamed(config_.kv_dtype).value());
    const int32_t largest = *std::max_element(batches_.begin(), batches_.end());
    const auto blocks = static_cast<int32_t>(
        std::min<int64_t>(config_.kv_memory / layout.BlockBytes(), int64_t{1} << 24));
    const int64_t batch_blocks = kv::BlocksFor(int64_t{config_.context} + config_.positions) *
                                 layout.groups.count() * largest;
    if (config_.windows > 0 && batch_blocks > blocks) {
      return absl::InvalidArgumentError(
          absl::StrCat("--kv-memory: holds ", blocks, " blocks, a batch of ", largest, " takes ",
                       batch_blocks, " blocks of ", layout.BlockBytes(), " bytes"));
    }
    LYNX_ASSIGN_OR_RETURN(runner_, model::ModelRunner::Load(
                                       {.model_dir = config_.model,
                                        .compute_dtype = DTypeNamed(config_.compute_dtype).value(),
                                        .kv_dtype = DTypeNamed(config_.kv_dtype).value(),
                                        .kv_blocks = blocks,
                                        .max_step_rows = std::max(largest, kPrefillRows),
                                        .max_step_logits = largest,
                                        .threads = config_.threads}));
    pool_ = std::make_unique<kv::BlockPool>(blocks);
    return absl::OkStatus();
  }

  absl::StatusOr<std::vector<EvalResult>> RunBatch(int32_t batch, Progress& progress) {
    const EvalModel model{.runner = *runner_,
                          .pool = *pool_,
                          .max_step_rows = std::max(
                              *std::max_element(batches_.begin(), batches_.end()), kPrefillRows),
                          .max_step_logits = *std::max_element(batches_.begin(), batches_.end())};
    std::vector<moe::Policy> policies;
    for (const EvalPolicy& policy : policies_) policies.push_back(policy.policy);
    std::vector<TextRun> text_runs;
    if (config_.windows > 0) {
      LYNX_ASSIGN_OR_RETURN(text_runs, RunTexts(model, texts_,
                                                {.batch = batch,
                                                 .context = config_.context,
                                                 .positions = config_.positions,
                                                 .exact_kv = config_.kv == "exact"},
                                                policies, progress));
    }
    std::vector<TaskRun> task_runs;
    TaskRun exact_tasks;
    if (config_.tasks > 0) {
      // Answers are compared with those of a run of its own.
      policies.push_back({});
      const AnswerFormat format{.tokenizer = *tokenizer_, .stop_tokens = stop_tokens_};
      LYNX_ASSIGN_OR_RETURN(task_runs, RunTasks(model, tasks_, format, batch, policies, progress));
      exact_tasks = std::move(task_runs.back());
      task_runs.pop_back();
    }
    return CollectResults(batch, policies_, texts_, text_runs, tasks_, task_runs, exact_tasks);
  }

  const EvalConfig& config_;
  const std::vector<int32_t> batches_;
  std::vector<EvalPolicy> policies_;
  std::unique_ptr<text::Tokenizer> tokenizer_;
  std::vector<TokenId> stop_tokens_;
  TextSet texts_;
  TaskSet tasks_;
  std::unique_ptr<model::ModelRunner> runner_;
  std::unique_ptr<kv::BlockPool> pool_;
};

absl::Status CheckConfig(const EvalConfig& config) {
  if (config.model.empty()) return absl::InvalidArgumentError("--model is missing");
  if (config.windows == 0 && config.tasks == 0) {
    return absl::InvalidArgumentError("--windows and --tasks are 0: nothing to evaluate");
  }
  return absl::OkStatus();
}

}  // namespace

int RunEval(int argc, const char* const* argv, std::ostream& out, std::ostream& err) {
  EvalConfig config;
  config::FlagSet flags("lynx eval",
                        "Measures what routing policies save and what they cost: distinct experts, "
                        "NLL and KL on texts, right answers on tasks, by true batched decode.");
  flags.SetOutput(&out);
  flags.AddString("model", &config.model, "Hugging Face folder of the model");
  flags.AddString("eval-dir", &config.eval_dir, "Folder of text-*.jsonl and task-*.jsonl");
  flags.AddStrings("batch", &config.batch, "Batch sizes: sequences decoded in one step");
  flags.AddStrings("policies", &config.policies,
                   "Policies as name:key=value,key=value; all: a span of every family");
  flags.AddString("json", &config.json, "File to write the results to");
  flags.AddString("svg", &config.svg, "File to draw the Pareto front to; needs gnuplot");
  flags.AddInt("windows", &config.windows, {0, 1 << 20}, "Most texts of each domain; 0: no texts");
  flags.AddInt("context", &config.context, {0, 1 << 20}, "Tokens of a text that are its prompt");
  flags.AddInt("positions", &config.positions, {1, 1 << 20}, "Tokens behind it to decode");
  flags.AddInt("tasks", &config.tasks, {0, 1 << 20}, "Most items of each task; 0: no tasks");
  flags.AddChoice("kv", &config.kv, {"own", "exact"},
                  "What texts' decode reads: what the policy's own steps left, or exact KV");
  flags.AddBytes("kv-memory", &config.kv_memory, {int64_t{1} << 20}, "Memory for the KV cache");
  flags.AddInt("threads", &config.threads, {0, 1024}, "Threads; 0: as many as the process may use");
  flags.AddChoice("compute-dtype", &config.compute_dtype, {"f32", "bf16"}, "Arithmetic");
  flags.AddChoice("kv-dtype", &config.kv_dtype, {"f32", "bf16"}, "KV cache");

  const absl::StatusOr<config::ParseOutcome> outcome = flags.Parse(argc, argv);
  if (outcome.ok() && *outcome == config::ParseOutcome::kPrinted) return 0;
  absl::Status status = outcome.status();
  if (status.ok()) status = CheckConfig(config);
  absl::StatusOr<std::vector<int32_t>> batches;
  if (status.ok()) {
    batches = ParseBatches(config.batch);
    status = batches.status();
  }
  if (!status.ok()) {
    err << "lynx eval: " << status.message() << "\n";
    return 2;
  }
  auto evaluation = Evaluation::Load(config, *std::move(batches));
  status = evaluation.ok() ? (*evaluation)->Run(out, err) : evaluation.status();
  if (!status.ok()) {
    err << "lynx eval: " << status.message() << "\n";
    return 1;
  }
  return 0;
}

}  // namespace lynx::cli
