#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/kv/kv_arena.h"
#include "common/model/model_runner.h"
#include "common/model/model_spec.h"

namespace lynx::testing {

// A ModelRunner without weights: the KV of a row is a hash of its token and position, and its
// logits are a hash of all KV that it attends to, read back from the arena. So a wrong block,
// a missing row, a stale or overwritten one changes the answer, as with a real model; and the same
// tokens give the same bits however they were batched and cut. A row with a lossy policy, in a step
// of two or more decode rows, hashes the whole batch and the policy in as well.
class FakeModelRunner final : public model::ModelRunner {
 public:
  struct Options {
    int32_t vocab_size = 97;
    int32_t layers = 3;
    int32_t kv_blocks = 64;
    int32_t max_positions = 0;  // 0: as many as the blocks hold.
    int32_t max_step_rows = 64;
    int32_t max_step_logits = 64;
    // The KV of a row is a hash of the row before it instead, and its logits come of its own KV
    // alone: a row costs the same however long its context, as fleets need; but a wrong block shows
    // only to the row that follows it.
    bool chained = false;
    std::vector<kv::Reach> reaches = {};  // [layers]; empty: all tokens, in every layer.
    int32_t numeric_class = 0;            // Those of another give a row other KV.
    // The class that generated tokens' rows are of: of the pair of nodes that such a model stands
    // for, its decode node's.
    std::optional<int32_t> decode_class = {};
  };
  explicit FakeModelRunner(const Options& options);

  // What greedy decoding gives of a chained model without lossy policies.
  static std::vector<TokenId> GreedyAnswer(const Options& options, std::span<const TokenId> prompt,
                                           int32_t tokens);

  absl::Status Step(std::span<const model::SequenceRows> all,
                    model::StepObserver* observer) override;
  std::span<const float> logits() const override { return logits_; }
  const model::StepStats& stats() const override { return stats_; }
  const model::ModelSpec& spec() const override { return spec_; }
  kv::KvArena& kv() override { return *arena_; }
  const std::string& numeric_class() const override { return numeric_class_; }
  const std::string& compatibility_hash() const override { return compatibility_hash_; }

  // From now on policies change nothing.
  void StopRemapping() { remaps_ = false; }

  // Faults. The logits that follow `token` get a NaN; the next Step fails with `status`.
  void PoisonLogitsAfter(TokenId token) { poisoned_token_ = token; }
  void FailNextStep(absl::Status status) { next_status_ = std::move(status); }

 private:
  absl::Status Check(std::span<const model::SequenceRows> batch) const;
  // What a lossy policy adds to the KV of the step's rows; 0: nothing is remapped.
  uint64_t Remapping(std::span<const model::SequenceRows> batch) const;
  // What the class of such rows adds to their KV.
  uint64_t ClassKey(const model::SequenceRows& rows) const;
  // What the row's logits are a hash of.
  uint64_t Context(const model::SequenceRows& rows, int32_t position);

  const Options options_;
  model::ModelSpec spec_;  // Vocabulary, layers and KV shape only.
  std::unique_ptr<kv::KvArena> arena_;
  std::vector<float> logits_;
  model::StepStats stats_;
  const std::string numeric_class_;
  const std::string compatibility_hash_ = "fake";
  bool remaps_ = true;
  TokenId poisoned_token_ = -1;
  absl::Status next_status_;
};

}  // namespace lynx::testing
