#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "common/base/dtype.h"
#include "common/engine/sampler.h"
#include "common/engine/sequence.h"
#include "common/engine/shadow.h"
#include "common/kv/block_pool.h"
#include "common/model/model_runner.h"
#include "common/moe/policy.h"

namespace lynx::engine {

// What a step is to do for one sequence: compute its next `tokens` tokens. When no token is pending
// after that, the step samples the next one.
struct WorkItem {
  Sequence* sequence = nullptr;  // Computed by its replica.
  int32_t tokens = 0;            // [1, sequence->pending_tokens()]
  // How a decode row of it may be remapped; null: never. Prompt rows never are, nor is what is
  // recomputed in chunks. Outlives the step.
  const moe::Policy* policy = nullptr;
};

// What came of one WorkItem.
struct ItemResult {
  // OK         the KV is computed, and `token` sampled if `has_token`; the sequence has both.
  // Cancelled  the sequence was cancelled: nothing was sampled. Free it.
  // Internal   the model's logits are broken: fail the sequence.
  absl::Status status;
  bool has_token = false;
  SampledToken token;
  // With params.prompt_logprobs: entries for the prompt tokens after those reported earlier, in
  // order; prompt token 0 has none. Each is reported once, even when recomputed.
  std::vector<SampledToken> prompt_logprobs;
};

// Hears of a step's progress on the stepping thread.
class StepListener {
 public:
  virtual ~StepListener() = default;
  // KV of all rows of `items` is final for layers 0..layer, and may be read by other threads from
  // now on (pushed to a decode node while the next layer computes).
  virtual void OnLayerDone(int32_t layer, std::span<const WorkItem> items) = 0;
  // `sequence` was cancelled and has left the step, which touches neither it nor its blocks from
  // now on, while others go on: its owner may free it. It is not among later `items`.
  virtual void OnLeft(Sequence& sequence) = 0;
};

struct EngineOptions {
  int32_t vocab_size = 0;       // The model's.
  int32_t max_step_rows = 0;    // As in RunnerOptions.
  int32_t max_step_logits = 0;  // As in RunnerOptions.
  int32_t replicas = 1;         // The runner's layout.dp.
};

// Monotonic counts, for metrics.
struct EngineStats {
  int64_t steps = 0;
  int64_t abandoned_steps = 0;  // Given up because every sequence was cancelled.
  int64_t rows = 0;             // Of completed steps.
  int64_t sampled_tokens = 0;
  int64_t broken_logits = 0;  // Sequences that got Internal.
};

// Advances sequences by whole steps: turns work items into a batch, runs the model and samples.
// Which sequences run, and how long their chunks are, is the caller's scheduling.
//
// Exactness: tokens and log-probabilities of a sequence depend on its prompt, output and params
// alone (and the runner's numeric class), whatever shares its steps and however it was cut; as long
// as none of its items had a lossy policy.
//
// Who may free what, when: a step reads and writes blocks of all its sequences until Step()
// returns. So blocks are freed by their owner between steps, never by the canceller; Sequence
// checks this. A cancelled sequence leaves the step at the next layer, when the listener hears of
// it (OnLeft), and may be freed from then on; a step whose sequences are all cancelled ends there.
// Where several ranks share the model, with a shadow and without a listener it waits for the
// step's end. When the listener handed blocks to another reader, that reader must be done as well,
// or own the lease (Sequence::TakeBlocks).
//
// One thread at a time. Outlives its sequences' blocks.
class Engine {
 public:
  Engine(std::unique_ptr<model::ModelRunner> runner, const EngineOptions& options);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // Runs one step and stores what came of each item. `listener` may be null. `shadow`, unless null,
  // was set up for this step and compares some of its rows; what comes of the items does not depend
  // on it.
  //   InvalidArgument  an item breaks a bound (tokens, blocks too few, sequence finished or named
  //                    twice, no such replica) or the items of a replica together exceed the
  //                    step's rows or logits; nothing was computed.
  //   other errors     of the runner: no sequence has changed, the KV of the step's rows is
  //                    undefined, and they are still pending.
  // No allocation per token once buffers have grown to the largest step seen.
  absl::Status Step(std::span<const WorkItem> items, StepListener* listener = nullptr,
                    Shadow* shadow = nullptr);

  // One per item of the last Step, in its order, those that have left it included (Cancelled);
  // empty when it failed. Valid until the next.
  std::span<const ItemResult> results() const { return {results_.data(), completed_items_}; }

  // Logits rows that a step needs for the item.
  static int32_t LogitsRows(const WorkItem& item);
  // The largest number of the sequence's pending tokens that fits in what is left of a step's
  // budgets, which are of its replica; 0 when nothing fits.
  static int32_t LargestChunk(Sequence& sequence, int32_t rows_left, int32_t logits_left);

  // Blocks of a sequence are of its replica's pool.
  kv::BlockPool& pool(int32_t replica = 0) { return pools_.at(static_cast<size_t>(replica)); }
  model::ModelRunner& runner() { return *runner_; }
  const EngineOptions& options() const { return options_; }
  const EngineStats& stats() const { return stats_; }

 private:
  class Observer;
  absl::Status BuildBatch();  // Marks the sequences of items_ up to the bad one as in the step.
  void Finish(size_t index, std::span<const float> logits);
  void SetCancelled(size_t index);

  const std::unique_ptr<model::ModelRunner> runner_;
  const EngineOptions options_;
  std::deque<kv::BlockPool> pools_;  // Of each replica. They stay where they are.
  Sampler sampler_;
  EngineStats stats_;
  // Of the running or last step; kept for their capacity. The first three: of what has not left it.
  std::vector<WorkItem> items_;
  std::vector<model::SequenceRows> batch_;
  std::vector<size_t> places_;  // In results_.
  std::vector<ItemResult> results_;
  size_t completed_items_ = 0;  // Leading results_ that are of the last step.
  // Of each replica, in BuildBatch().
  struct Load {
    int64_t rows = 0;
    int64_t logits_rows = 0;
  };
  std::vector<Load> loads_;
};

}  // namespace lynx::engine
