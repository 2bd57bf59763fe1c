#include "services/cli/bench/ranks_bench.h"

#include <algorithm>
#include <barrier>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/available_memory.h"
#include "common/base/dtype.h"
#include "common/base/status_macros.h"
#include "common/collective/gloo_communicator.h"
#include "common/collective/memory_rendezvous.h"
#include "common/collective/rank_threads.h"
#include "common/config/flag_set.h"
#include "common/kv/block_pool.h"
#include "common/model/memory_need.h"
#include "common/model/model_runner.h"
#include "common/model/model_spec.h"
#include "common/model/shard_plan.h"
#include "kernels/core/cpu_limit.h"
#include "services/cli/bench/kv_noise.h"
#include "services/cli/bench/memory_need.h"
#include "services/cli/bench/model_shape.h"
#include "services/cli/bench/router_replay.h"
#include "services/cli/bench/router_traces.h"
#include "services/cli/bench/run_mode.h"
#include "services/cli/bench/synthetic_weights.h"
#include "services/cli/bench/timed_communicator.h"
#include "services/cli/engine_flags.h"

namespace lynx::cli {
namespace {

constexpr int32_t kMostRanks = 16;

struct RanksBenchConfig {
  std::string mode = {};
  std::string shape = "olmoe-1b-7b";
  std::string traces = "models/router-traces/mixed.bin";
  int32_t layers = 2;
  std::vector<std::string> ep = {"2", "4"};
  std::vector<std::string> batch = {"1", "4", "16", "64"};
  int32_t context = 128;
  int32_t steps = 8;
  int32_t rounds = 5;
  int32_t seed = 1;
  bool json = false;
};

// How the ranks of a node share attention and experts.
struct Form {
  std::string name;
  model::ParallelLayout layout;
};

// The first is what the others are compared with.
std::vector<Form> FormsOf(int32_t ranks) {
  return {{"sum", {.tp = ranks, .dp = 1, .ep = ranks}},
          {"order-free sum", {.tp = ranks, .dp = 1, .ep = ranks, .ep_spare = 1}},
          {"all-to-all", {.tp = 1, .dp = ranks, .ep = ranks}}};
}

struct TimedStep {
  double ms = 0;
  double collective_share = 0;  // Of it in collectives, waiting for others included; of all ranks.
};

// Steps of one form and batch.
struct FormSamples {
  std::vector<TimedStep> steps;
  std::vector<TimedStep> exchanges;  // What a step exchanges, without anything between.
  int64_t sent_bytes = 0;            // Of all steps and ranks.
  int64_t expert_bytes = 0;          // Of all steps, read by the rank that reads most.
};

struct RanksRow {
  int32_t ranks = 0;
  int32_t batch = 0;
  std::string form = {};
  double step_ms = 0;
  double ratio = 0;  // To the first form's.
  double collective_share = 0;
  double exchange_ms = 0;
  double exchange_ratio = 0;
  double kib = 0;      // Sent in a step by a rank, the mean.
  double experts = 0;  // Of the fullest rank, mean of the layers.
};

// The mean of the fastest tenth: what else the machine does only adds.
TimedStep Fastest(std::vector<TimedStep> steps) {
  std::ranges::sort(steps, {}, &TimedStep::ms);
  steps.resize((steps.size() + 9) / 10);
  TimedStep mean;
  for (const TimedStep& step : steps) {
    mean.ms += step.ms / static_cast<double>(steps.size());
    mean.collective_share += step.collective_share / static_cast<double>(steps.size());
  }
  return mean;
}

// The ranks of one node, as threads of this process that talk over TCP. One thread.
class RankNode {
 public:
  static absl::StatusOr<std::unique_ptr<RankNode>> Start(
      const Form& form, const model::ModelSpec& spec, const SyntheticWeights& weights,
      const RouterTraces& traces, const RanksBenchConfig& config, int32_t most_rows) {
    const auto ranks = static_cast<size_t>(form.layout.world());
    std::unique_ptr<RankNode> node(new RankNode(form, config.context, ranks));
    collective::MemoryRendezvous rendezvous;
    const absl::Status started = collective::OnEachRank(ranks, [&](size_t index) -> absl::Status {
      Rank& rank = node->ranks_[index];
      LYNX_ASSIGN_OR_RETURN(rank.group,
                            collective::GlooCommunicator::Connect({.rank = static_cast<int>(index),
                                                                   .size = static_cast<int>(ranks),
                                                                   .timeout = absl::Seconds(60)},
                                                                  rendezvous));
      rank.timed = std::make_unique<TimedCommunicator>(*rank.group, rank.calls);
      rank.replay = std::make_unique<RouterReplay>(traces);
      model::RunnerOptions options;
      const int32_t rows = node->RowsOfReplica(most_rows, 0);
      const int64_t blocks =
          node->BlocksOfSequence(model::KvLayoutOf(spec, options.kv_dtype).groups.count());
      options.kv_blocks = static_cast<int32_t>(blocks * rows);
      options.max_step_rows = rows;
      options.max_step_logits = 1;
      options.threads = 1;
      options.layout = form.layout;
      options.ranks = rank.timed.get();
      options.router_override = rank.replay.get();
      LYNX_ASSIGN_OR_RETURN(rank.runner,
                            model::ModelRunner::Create(options, spec, weights.tensors(), "bench"));
      std::vector<kv::BlockId> all(static_cast<size_t>(options.kv_blocks));
      for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<kv::BlockId>(i);
      FillWithNoise(all, static_cast<uint32_t>(index), rank.runner->kv());
      return absl::OkStatus();
    });
    LYNX_RETURN_IF_ERROR(started);
    return node;
  }

  // Steps `first` to `first` + `steps` of one round, before which one runs that is not counted.
  absl::Status RunRound(std::span<const TokenId> tokens, int64_t first, int64_t steps,
                        FormSamples& samples) {
    LYNX_RETURN_IF_ERROR(Step(tokens, first + steps).status());
    const int64_t sent = SentBytes();
    for (int64_t step = first; step < first + steps; ++step) {
      for (Rank& rank : ranks_) rank.calls.TakeSeconds();
      LYNX_ASSIGN_OR_RETURN(const double seconds, Step(tokens, step));
      double collective_seconds = 0;
      for (Rank& rank : ranks_) collective_seconds += rank.calls.TakeSeconds();
      samples.steps.push_back(
          {seconds * 1e3, collective_seconds / static_cast<double>(ranks_.size()) / seconds});
      samples.expert_bytes += ExpertBytesOfFullest();
    }
    samples.sent_bytes += SentBytes() - sent;

    // What one of these steps exchanged, as often.
    for (Rank& rank : ranks_) rank.calls.Record();
    LYNX_RETURN_IF_ERROR(Step(tokens, first).status());
    for (Rank& rank : ranks_) rank.calls.StopRecording();
    LYNX_RETURN_IF_ERROR(Replay().status());
    for (int64_t i = 0; i < steps; ++i) {
      LYNX_ASSIGN_OR_RETURN(const double seconds, Replay());
      samples.exchanges.push_back({.ms = seconds * 1e3});
    }
    return absl::OkStatus();
  }

 private:
  struct Rank {
    std::unique_ptr<collective::GlooCommunicator> group;
    CollectiveCalls calls;
    std::unique_ptr<TimedCommunicator> timed;
    std::unique_ptr<RouterReplay> replay;
    std::unique_ptr<model::ModelRunner> runner;
  };

  RankNode(const Form& form, int32_t context, size_t ranks)
      : layout_(form.layout), context_(context), ranks_(ranks) {}

  // The first replicas have one more where they do not divide evenly.
  int32_t RowsOfReplica(int32_t rows, int32_t replica) const {
    return rows / layout_.dp + (replica < rows % layout_.dp ? 1 : 0);
  }
  int64_t BlocksOfSequence(int64_t groups) const {
    return kv::BlocksFor(int64_t{context_} + 1) * groups;
  }

  // Of all ranks, once each has begun.
  absl::StatusOr<double> TimeAll(const std::function<absl::Status(Rank&)>& body) {
    std::vector<std::chrono::steady_clock::time_point> began(ranks_.size());
    std::vector<std::chrono::steady_clock::time_point> ended(ranks_.size());
    std::barrier start(static_cast<std::ptrdiff_t>(ranks_.size()));
    const absl::Status done = collective::OnEachRank(ranks_.size(), [&](size_t index) {
      Rank& rank = ranks_[index];
      start.arrive_and_wait();
      began[index] = std::chrono::steady_clock::now();
      LYNX_RETURN_IF_ERROR(body(rank));
      ended[index] = std::chrono::steady_clock::now();
      return absl::OkStatus();
    });
    LYNX_RETURN_IF_ERROR(done);
    const std::chrono::duration<double> took =
        *std::ranges::max_element(ended) - *std::ranges::min_element(began);
    return took.count();
  }

  // One row for each of `tokens`, those of a replica one after the other: plans have the rows in
  // the same order in every form.
  absl::StatusOr<double> Step(std::span<const TokenId> tokens, int64_t step) {
    const auto rows = static_cast<int32_t>(tokens.size());
    const int64_t blocks = BlocksOfSequence(ranks_.front().runner->kv().layout().groups.count());
    std::vector<kv::BlockId> ids(static_cast<size_t>(blocks * RowsOfReplica(rows, 0)));
    for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<kv::BlockId>(i);
    std::vector<model::SequenceRows> batch;
    for (int32_t replica = 0; replica < layout_.dp; ++replica) {
      for (int32_t i = 0; i < RowsOfReplica(rows, replica); ++i) {
        batch.push_back({.tokens = tokens.subspan(batch.size(), 1),
                         .start = context_,
                         .blocks = std::span(ids).subspan(static_cast<size_t>(i * blocks),
                                                          static_cast<size_t>(blocks)),
                         .logits_rows = 0,
                         .decode = true,
                         .replica = replica});
      }
    }
    return TimeAll([&](Rank& rank) {
      rank.replay->set_step(step);
      return rank.runner->Step(batch, nullptr);
    });
  }

  absl::StatusOr<double> Replay() {
    return TimeAll([](Rank& rank) { return rank.calls.Replay(); });
  }

  int64_t SentBytes() const {
    int64_t bytes = 0;
    for (const Rank& rank : ranks_) bytes += rank.group->sent_bytes();
    return bytes;
  }

  // Of the last step.
  int64_t ExpertBytesOfFullest() const {
    int64_t most = 0;
    for (const Rank& rank : ranks_) most = std::max(most, rank.runner->stats().expert_bytes_read);
    return most;
  }

  const model::ParallelLayout layout_;
  const int32_t context_;
  std::vector<Rank> ranks_;
};

double BytesOfExperts(const model::ModelSpec& spec) {
  const auto moe_layers = std::ranges::count(spec.feed_forward, model::FeedForwardKind::kMoe);
  return static_cast<double>(ExpertParameters(spec) * 2 * moe_layers);  // bf16
}

absl::Status CheckMemory(const model::ModelSpec& spec, const std::vector<Form>& forms,
                         int32_t ranks, int32_t rows, int32_t context) {
  int64_t weights = 0;
  for (const Form& form : forms) {
    weights += WeightBytes(spec) +
               static_cast<int64_t>(BytesOfExperts(spec)) * form.layout.ep_spare * form.layout.ep;
  }
  const int64_t blocks = kv::BlocksFor(int64_t{context} + 1) *
                         model::KvLayoutOf(spec, DType::kBf16).groups.count() * rows *
                         std::ssize(forms);
  const model::MemoryNeed need = model::NeedOf(spec, weights,
                                               {.kv_dtype = DType::kBf16,
                                                .kv_blocks = blocks,
                                                .rows = rows * ranks,
                                                .logits_rows = 1,
                                                .threads = 1});
  return CheckFits(need, /*read_buffer=*/0, spec, AvailableMemory());
}

absl::StatusOr<std::vector<RanksRow>> Measure(const RanksBenchConfig& config,
                                              const model::ModelSpec& spec,
                                              const SyntheticWeights& weights,
                                              const RouterTraces& traces, int32_t ranks,
                                              const std::vector<int32_t>& batches) {
  const std::vector<Form> forms = FormsOf(ranks);
  const int32_t most_rows = std::ranges::max(batches);
  LYNX_RETURN_IF_ERROR(CheckMemory(spec, forms, ranks, most_rows, config.context));
  std::vector<std::unique_ptr<RankNode>> nodes;
  for (const Form& form : forms) {
    LYNX_ASSIGN_OR_RETURN(nodes.emplace_back(),
                          RankNode::Start(form, spec, weights, traces, config, most_rows));
  }
  std::mt19937 rng(static_cast<uint32_t>(config.seed));
  std::uniform_int_distribution<TokenId> token(0, spec.vocab_size - 1);
  std::vector<RanksRow> rows;
  for (const int32_t batch : batches) {
    std::vector<FormSamples> samples(forms.size());
    for (int64_t round = 0; round < config.rounds; ++round) {
      std::vector<TokenId> tokens(static_cast<size_t>(batch));
      for (TokenId& id : tokens) id = token(rng);
      for (size_t i = 0; i < forms.size(); ++i) {
        LYNX_RETURN_IF_ERROR(
            nodes[i]->RunRound(tokens, round * config.steps, config.steps, samples[i]));
      }
    }
    const double all_steps = static_cast<double>(config.rounds) * config.steps;
    const TimedStep base = Fastest(samples[0].steps);
    const TimedStep base_exchange = Fastest(samples[0].exchanges);
    for (size_t i = 0; i < forms.size(); ++i) {
      const TimedStep step = Fastest(samples[i].steps);
      const TimedStep exchange = Fastest(samples[i].exchanges);
      rows.push_back({.ranks = ranks,
                      .batch = batch,
                      .form = forms[i].name,
                      .step_ms = step.ms,
                      .ratio = step.ms / base.ms,
                      .collective_share = step.collective_share,
                      .exchange_ms = exchange.ms,
                      .exchange_ratio = exchange.ms / base_exchange.ms,
                      .kib = static_cast<double>(samples[i].sent_bytes) / 1024 / ranks / all_steps,
                      .experts = static_cast<double>(samples[i].expert_bytes) / all_steps /
                                 BytesOfExperts(spec)});
    }
  }
  return rows;
}

void Print(const RanksBenchConfig& config, const ModelShape& model,
           const std::vector<RanksRow>& rows, std::ostream& out) {
  out << absl::StrFormat("decode of ranks, %s, %d layers, context %d; a thread each, on %d CPUs\n",
                         model.name, model.spec.layers, config.context, kernels::UsableCpus())
      << absl::StrFormat("%5s %6s %-15s %9s %7s %9s %12s %7s %10s %8s\n", "ranks", "batch", "form",
                         "step ms", "ratio", "in calls", "exchange ms", "ratio", "KiB sent",
                         "experts");
  for (const RanksRow& row : rows) {
    out << absl::StrFormat("%5d %6d %-15s %9.2f %7.2f %9.2f %12.3f %7.2f %10.1f %8.2f\n", row.ranks,
                           row.batch, row.form, row.step_ms, row.ratio, row.collective_share,
                           row.exchange_ms, row.exchange_ratio, row.kib, row.experts);
  }
}

void PrintJson(const RanksBenchConfig& config, const ModelShape& model,
               const std::vector<RanksRow>& rows, std::ostream& out) {
  nlohmann::json json = {{"mode", config.mode},           {"model", model.name},
                         {"layers", model.spec.layers},   {"context", config.context},
                         {"cpus", kernels::UsableCpus()}, {"results", nlohmann::json::array()}};
  for (const RanksRow& row : rows) {
    json["results"].push_back({{"ranks", row.ranks},
                               {"batch", row.batch},
                               {"form", row.form},
                               {"step_ms", row.step_ms},
                               {"ratio", row.ratio},
                               {"collective_share", row.collective_share},
                               {"exchange_ms", row.exchange_ms},
                               {"exchange_ratio", row.exchange_ratio},
                               {"kib_sent", row.kib},
                               {"experts", row.experts}});
  }
  // Paths need not be UTF-8.
  out << json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) << "\n";
}

absl::Status Run(const RanksBenchConfig& config, std::ostream& out) {
  LYNX_ASSIGN_OR_RETURN(const std::vector<int32_t> batches, ParseBatches(config.batch));
  LYNX_ASSIGN_OR_RETURN(const std::vector<int32_t> widths,
                        ParseCounts("--ep", config.ep, kMostRanks, /*least=*/2));
  LYNX_ASSIGN_OR_RETURN(ModelShape model, ShapeOfFlag(config.shape));
  if (!model.spec.has_moe()) {
    return absl::InvalidArgumentError(absl::StrCat("--shape: ", model.name, " has no experts"));
  }
  if (config.layers > model.spec.layers) {
    return absl::InvalidArgumentError(
        absl::StrFormat("--layers: %d, the shape has %d", config.layers, model.spec.layers));
  }
  if (config.layers > 0) KeepLayers(config.layers, model.spec);
  if (config.context >= model.spec.max_positions) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--context: ", config.context, ", the model holds ", model.spec.max_positions - 1));
  }
  for (const int32_t ranks : widths) {
    for (const Form& form : FormsOf(ranks)) {
      LYNX_RETURN_IF_ERROR(model::CheckLayout(model.spec, form.layout));
    }
  }
  LYNX_ASSIGN_OR_RETURN(const RouterTraces traces, ReadRouterTraces(config.traces));
  std::vector<RanksRow> rows;
  for (const int32_t ranks : widths) {
    LYNX_ASSIGN_OR_RETURN(const SyntheticWeights weights,
                          SyntheticWeights::Create(model.spec, static_cast<uint64_t>(config.seed)));
    LYNX_ASSIGN_OR_RETURN(const std::vector<RanksRow> measured,
                          Measure(config, model.spec, weights, traces, ranks, batches));
    rows.insert(rows.end(), measured.begin(), measured.end());
  }
  config.json ? PrintJson(config, model, rows, out) : Print(config, model, rows, out);
  return absl::OkStatus();
}

}  // namespace

int RunRanksBench(int argc, const char* const* argv, std::ostream& out, std::ostream& err) {
  RanksBenchConfig config;
  config::FlagSet flags("lynx bench ranks",
                        "Measures decode steps of a node of several ranks, which are threads with "
                        "TCP between them: experts in parallel with rows on all ranks and one sum, "
                        "the same with the sum that spare slots take, and with replicas of "
                        "attention and all-to-all.");
  flags.SetOutput(&out);
  flags.AddPositional("mode", &config.mode, "ranks");
  flags.AddString("shape", &config.shape,
                  "Dimensions of the model, as lynx bench decode's; weights are random");
  flags.AddInt("layers", &config.layers, {0, 10000}, "Layers of the shape to run; 0: all");
  flags.AddString("traces", &config.traces, "Router logits to replay, as lynx bench decode's");
  flags.AddStrings("ep", &config.ep, "Numbers of ranks, each of which has a part of the experts");
  flags.AddStrings("batch", &config.batch, "Numbers of sequences to measure, over all ranks");
  flags.AddInt("context", &config.context, {1, 1 << 20}, "Tokens of each sequence");
  flags.AddInt("steps", &config.steps, {1, 10000}, "Steps of a form in a round");
  flags.AddInt("rounds", &config.rounds, {1, 1000}, "Rounds, in which the forms take turns");
  flags.AddInt("seed", &config.seed, {0}, "Of random tokens and weights");
  flags.AddBool("json", &config.json, "Print JSON");

  return RunMode(flags, argc, argv, err, [&] { return Run(config, out); });
}

}  // namespace lynx::cli
