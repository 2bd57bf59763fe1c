// What expert-affinity placement saves: distinct experts of decode steps under each placement, on
// the routing that a model has on held-out text. See README.md.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/status_macros.h"
#include "common/kv/block_pool.h"
#include "common/kv/kv_layout.h"
#include "common/model/model_runner.h"
#include "common/model/model_spec.h"
#include "common/model/router_override.h"
#include "common/moe/planner.h"
#include "common/moe/presets.h"
#include "common/text/chat_template.h"
#include "common/text/tokenizer.h"
#include "services/cli/eval/eval_data.h"
#include "services/router/placement/make_policy.h"

namespace lynx {
namespace {

constexpr int32_t kTokens = 256;  // Of a sequence,
constexpr int32_t kPrompt = 128;  // of which these are its prompt.
constexpr int32_t kShortestAnswer = 32;
constexpr int kSteps = 700;
constexpr int kWarmup = 200;
constexpr int kSeeds = 8;
// OLMoE-1B-7B at batches of 4 to 16 (docs/benchmarks.md): what a sequence more costs.
constexpr StepTime kStepTime = {.base = absl::Milliseconds(138), .per_row = absl::Milliseconds(24)};

struct Sequence {
  std::vector<TokenId> tokens;
  std::vector<float> logits = {};  // [layers, kTokens, experts]
  // The experts that its tokens are routed to, each with its layer as one number: what a policy
  // could go by that saw the prefill, or the future.
  std::vector<TokenId> prompt_experts = {};
  std::vector<TokenId> answer_experts = {};
};

// Keeps what the routers say.
class Recorder : public model::RouterOverride {
 public:
  void Replace(int32_t, int32_t, int32_t, std::span<float> logits) override {
    logits_.insert(logits_.end(), logits.begin(), logits.end());
  }
  std::vector<float> Take() { return std::exchange(logits_, {}); }

 private:
  std::vector<float> logits_;
};

struct Model {
  int32_t layers = 0;
  int32_t experts = 0;
  int32_t top_k = 0;
  moe::Gate gate;
  moe::Policy lynx = {};
};

void ListExperts(const Model& model, Sequence& sequence) {
  const auto experts = static_cast<size_t>(model.experts);
  std::vector<TokenId> ids(experts);
  for (size_t row = 0; row < sequence.logits.size() / experts; ++row) {
    const float* logits = sequence.logits.data() + row * experts;
    for (size_t i = 0; i < experts; ++i) ids[i] = static_cast<TokenId>(i);
    std::partial_sort(ids.begin(), ids.begin() + model.top_k, ids.end(),
                      [&](TokenId a, TokenId b) { return logits[a] > logits[b]; });
    const auto layer = static_cast<TokenId>(row / kTokens);
    std::vector<TokenId>& list =
        row % kTokens < kPrompt ? sequence.prompt_experts : sequence.answer_experts;
    for (int32_t i = 0; i < model.top_k; ++i) {
      list.push_back(layer * model.experts + ids[static_cast<size_t>(i)]);
    }
  }
}

// One prompt's routing is that of the same tokens generated one by one: exact routing is exact.
absl::Status Record(const Model& model, model::ModelRunner& runner, Recorder& recorder,
                    std::vector<Sequence>& sequences) {
  kv::BlockPool pool(kv::BlocksFor(kTokens));
  LYNX_ASSIGN_OR_RETURN(const kv::BlockLease lease, pool.Acquire(kv::BlocksFor(kTokens)));
  for (Sequence& sequence : sequences) {
    const model::SequenceRows rows = {.tokens = sequence.tokens, .blocks = lease.blocks()};
    LYNX_RETURN_IF_ERROR(runner.Step({&rows, 1}, nullptr));
    sequence.logits = recorder.Take();
    ListExperts(model, sequence);
  }
  return absl::OkStatus();
}

// Questions of one task, each with its answer, one after the other.
absl::StatusOr<std::vector<Sequence>> TaskSequences(const cli::TaskSet& tasks,
                                                    const text::Tokenizer& tokenizer) {
  std::vector<Sequence> sequences;
  for (size_t task = 0; task < tasks.tasks.size(); ++task) {
    Sequence sequence;
    for (const cli::TaskItem& item : tasks.items) {
      if (static_cast<size_t>(item.task) != task) continue;
      sequence.tokens.insert(sequence.tokens.end(), item.prompt.begin(), item.prompt.end());
      LYNX_ASSIGN_OR_RETURN(const std::vector<TokenId> answer,
                            tokenizer.Encode(item.answer, /*add_special_tokens=*/false));
      sequence.tokens.insert(sequence.tokens.end(), answer.begin(), answer.end());
      if (sequence.tokens.size() < kTokens) continue;
      sequence.tokens.resize(kTokens);
      sequences.push_back(std::exchange(sequence, {}));
    }
  }
  return sequences;
}

struct Figures {
  double experts_exact = 0;  // Of a layer of a step, as a sequence of the step meets it.
  double experts_lynx = 0;
  double kept_mass = 0;
  double fullest = 0;  // Sequences of the fullest node over the mean.
};

struct Live {
  const Sequence* sequence = nullptr;
  int32_t position = 0;
  int32_t end = 0;
};

struct Setting {
  const char* name;
  const char* placement;
  int routers = 1;
  std::vector<TokenId> Sequence::*shown = &Sequence::tokens;  // What it takes for the prompt.
};

class Fleet {
 public:
  Fleet(const Model& model, std::span<const Sequence> sequences, int32_t nodes, int32_t batch)
      : model_(model),
        sequences_(sequences),
        nodes_(static_cast<size_t>(nodes)),
        batch_(batch),
        plan_(nodes * batch, model.experts, model.top_k),
        planner_(nodes * batch, model.experts, model.top_k) {}

  // A closed loop: for each sequence that ends another comes, to one router after the other.
  Figures Run(const Setting& setting, uint64_t seed) {
    std::vector<std::unique_ptr<router::PlacementPolicy>> policies;
    for (int i = 0; i < setting.routers; ++i) {
      policies.push_back(
          router::MakePlacement(setting.placement, seed * 100 + static_cast<uint64_t>(i)));
    }
    for (std::vector<Live>& node : nodes_) node.clear();
    std::mt19937_64 random(seed);
    std::vector<size_t> order;
    uint64_t arrived = 0;
    Figures sum;
    double rows = 0;
    int steps = 0;
    for (int step = 0; step < kSteps; ++step) {
      size_t live = 0;
      for (const std::vector<Live>& node : nodes_) live += node.size();
      for (; live < nodes_.size() * static_cast<size_t>(batch_); ++live) {
        if (order.empty()) order = Shuffled(random);
        const Sequence& sequence = sequences_[order.back()];
        order.pop_back();
        const auto length = kShortestAnswer +
                            static_cast<int32_t>(random() % (kTokens - kPrompt - kShortestAnswer));
        std::span<const TokenId> shown = sequence.*setting.shown;
        if (setting.shown == &Sequence::tokens) shown = shown.first(kPrompt);
        Node(*policies[arrived++ % policies.size()], shown)
            .push_back({&sequence, kPrompt, kPrompt + length});
      }
      size_t fullest = 0;
      for (std::vector<Live>& node : nodes_) {
        fullest = std::max(fullest, node.size());
        if (step >= kWarmup && !node.empty()) {
          Count(node, sum);
          rows += static_cast<double>(node.size());
        }
        for (Live& live_one : node) ++live_one.position;
        std::erase_if(node, [](const Live& one) { return one.position == one.end; });
      }
      if (step >= kWarmup) {
        sum.fullest += static_cast<double>(fullest) / batch_;
        ++steps;
      }
    }
    const double plans = rows * model_.layers;
    return {.experts_exact = sum.experts_exact / plans,
            .experts_lynx = sum.experts_lynx / plans,
            .kept_mass = sum.kept_mass / plans,
            .fullest = sum.fullest / steps};
  }

 private:
  std::vector<size_t> Shuffled(std::mt19937_64& random) const {
    std::vector<size_t> order(sequences_.size());
    for (size_t i = 0; i < order.size(); ++i) order[i] = i;
    for (size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[random() % i]);
    return order;
  }

  std::vector<Live>& Node(router::PlacementPolicy& policy, std::span<const TokenId> prompt) {
    std::vector<router::DecodeCandidate> candidates;
    for (size_t i = 0; i < nodes_.size(); ++i) {
      candidates.push_back({.node = i + 1,
                            .free_blocks = 1 << 20,
                            .load = static_cast<int64_t>(nodes_[i].size()),
                            .step_time = kStepTime});
    }
    return nodes_[*policy.PickDecode(candidates, {.prompt_tokens = kPrompt, .prompt = prompt}) - 1];
  }

  // Adds a step's plans, once for each of its sequences.
  void Count(std::span<const Live> batch, Figures& sum) {
    const auto experts = static_cast<size_t>(model_.experts);
    const std::vector<const moe::Policy*> policies(batch.size(), &model_.lynx);
    for (int32_t layer = 0; layer < model_.layers; ++layer) {
      logits_.clear();
      for (const Live& live : batch) {
        const auto row = static_cast<size_t>(layer) * kTokens + static_cast<size_t>(live.position);
        const auto from = std::span<const float>(live.sequence->logits).subspan(row * experts);
        logits_.insert(logits_.end(), from.begin(), from.begin() + model_.experts);
      }
      planner_.MakePlan({.logits = logits_,
                         .rows = static_cast<int32_t>(batch.size()),
                         .experts = model_.experts,
                         .top_k = model_.top_k,
                         .layer = layer,
                         .gate = model_.gate,
                         .policies = policies},
                        plan_);
      const auto rows = static_cast<double>(batch.size());
      sum.experts_exact += rows * plan_.stats().experts_exact;
      sum.experts_lynx += rows * plan_.stats().experts;
      sum.kept_mass += rows * static_cast<double>(plan_.stats().kept_mass_mean);
    }
  }

  const Model& model_;
  const std::span<const Sequence> sequences_;
  std::vector<std::vector<Live>> nodes_;
  const int32_t batch_;
  moe::RoutingPlan plan_;
  moe::Planner planner_;
  std::vector<float> logits_;
};

struct Mean {
  double mean = 0;
  double error = 0;
};

Mean MeanOf(std::span<const double> values) {
  const auto n = static_cast<double>(values.size());
  Mean result;
  for (const double value : values) result.mean += value / n;
  for (const double value : values) result.error += (value - result.mean) * (value - result.mean);
  result.error = std::sqrt(result.error / (n * (n - 1)));
  return result;
}

void Print(const Model& model, const char* name, std::span<const Sequence> sequences) {
  std::printf("%s: %zu sequences\n%5s %5s %-18s %7s %14s %7s %14s %6s %8s\n", name,
              sequences.size(), "nodes", "batch", "placement", "exact", "to least-load", "lynx",
              "to least-load", "kept", "fullest");
  for (const int32_t nodes : {2, 4}) {
    for (const int32_t batch : {4, 8, 16}) {
      Fleet fleet(model, sequences, nodes, batch);
      std::vector<Figures> least;
      for (const Setting& setting :
           {Setting{"least-load", "least-load"}, Setting{"random", "random"},
            Setting{"round-robin", "round-robin"}, Setting{"expert-affinity", "expert-affinity"},
            Setting{"- two routers", "expert-affinity", 2},
            Setting{"- prompt's experts", "expert-affinity", 1, &Sequence::prompt_experts},
            Setting{"- answer's experts", "expert-affinity", 1, &Sequence::answer_experts}}) {
        std::vector<double> exact;
        std::vector<double> lynx;
        std::vector<double> exact_change;
        std::vector<double> lynx_change;
        double kept = 0;
        double fullest = 0;
        for (int seed = 0; seed < kSeeds; ++seed) {
          const Figures f = fleet.Run(setting, static_cast<uint64_t>(seed) + 1);
          if (least.size() < kSeeds) least.push_back(f);
          const Figures& to = least[static_cast<size_t>(seed)];
          exact.push_back(f.experts_exact);
          lynx.push_back(f.experts_lynx);
          exact_change.push_back(100 * (f.experts_exact / to.experts_exact - 1));
          lynx_change.push_back(100 * (f.experts_lynx / to.experts_lynx - 1));
          kept += f.kept_mass / kSeeds;
          fullest += f.fullest / kSeeds;
        }
        const Mean e = MeanOf(exact_change);
        const Mean l = MeanOf(lynx_change);
        std::printf("%5d %5d %-18s %7.2f %6.2f +-%4.2f%% %7.2f %6.2f +-%4.2f%% %6.4f %8.2f\n",
                    nodes, batch, setting.name, MeanOf(exact).mean, e.mean, e.error,
                    MeanOf(lynx).mean, l.mean, l.error, kept, fullest);
        std::fflush(stdout);
      }
    }
  }
}

absl::Status Run(const std::string& model_dir, const std::string& eval_dir) {
  Recorder recorder;
  LYNX_ASSIGN_OR_RETURN(
      const std::unique_ptr<model::ModelRunner> runner,
      model::ModelRunner::Load({.model_dir = model_dir,
                                .kv_blocks = static_cast<int32_t>(kv::BlocksFor(kTokens)),
                                .max_step_rows = kTokens,
                                .max_step_logits = 1,
                                .router_override = &recorder}));
  const model::ModelSpec& spec = runner->spec();
  Model model = {.layers = spec.layers,
                 .experts = spec.experts,
                 .top_k = spec.experts_per_token,
                 .gate = spec.gate};
  model.lynx =
      moe::WithPreset({.kind = moe::Policy::Kind::kLynx}, {.model_type = spec.model_type,
                                                           .name = model_dir,
                                                           .experts = spec.experts,
                                                           .top_k = spec.experts_per_token,
                                                           .hidden_size = spec.hidden_size});
  LYNX_ASSIGN_OR_RETURN(const std::unique_ptr<text::Tokenizer> tokenizer,
                        text::Tokenizer::Load(model_dir));
  LYNX_ASSIGN_OR_RETURN(const std::unique_ptr<text::ChatTemplate> chat_template,
                        text::ChatTemplate::Load(model_dir));
  LYNX_ASSIGN_OR_RETURN(const cli::TextSet texts,
                        cli::LoadTexts(eval_dir, *tokenizer, 1 << 20, kTokens));
  LYNX_ASSIGN_OR_RETURN(const cli::TaskSet tasks,
                        cli::LoadTasks(eval_dir, *tokenizer, *chat_template, 1 << 20));
  std::vector<Sequence> text_sequences;
  for (const cli::TextWindow& window : texts.windows) {
    text_sequences.push_back({.tokens = {window.tokens.begin(), window.tokens.begin() + kTokens}});
  }
  LYNX_ASSIGN_OR_RETURN(std::vector<Sequence> task_sequences, TaskSequences(tasks, *tokenizer));
  LYNX_RETURN_IF_ERROR(Record(model, *runner, recorder, text_sequences));
  LYNX_RETURN_IF_ERROR(Record(model, *runner, recorder, task_sequences));
  std::printf("distinct experts of %d, policy %s; mean of %d runs +- its standard error\n",
              model.experts, moe::ToString(model.lynx).c_str(), kSeeds);
  Print(model, "texts", text_sequences);
  Print(model, "tasks", task_sequences);
  return absl::OkStatus();
}

}  // namespace
}  // namespace lynx

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: affinity_bench MODEL_DIR EVAL_DIR\n");
    return 2;
  }
  const absl::Status status = lynx::Run(argv[1], argv[2]);
  if (!status.ok()) std::fprintf(stderr, "affinity_bench: %s\n", status.ToString().c_str());
  return status.ok() ? 0 : 1;
}
