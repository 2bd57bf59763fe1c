#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/dtype.h"
#include "common/kv/block_pool.h"

namespace lynx::model {
class ModelRunner;
}  // namespace lynx::model

namespace lynx::cli {

// A loaded model and the memory of its KV cache. Outlives whoever was given it; one thread.
struct EvalModel {
  model::ModelRunner& runner;
  kv::BlockPool& pool;
  int32_t max_step_rows = 0;    // As in RunnerOptions.
  int32_t max_step_logits = 0;  // As in RunnerOptions.
};

// Prompts computed exactly, each with room behind it for the tokens of decode steps.
//
// Any number of decodes may start from the same prompt, one after the other: a step reads only what
// lies before its own position and overwrites what an earlier decode left at and behind it.
class PrefilledPrompts {
 public:
  struct Prompt {
    std::span<const TokenId> tokens;  // Maybe empty: nothing to compute, and no first token.
    int32_t room = 0;                 // Tokens that decode steps may add.
  };

  // ResourceExhausted: the pool has not enough blocks left. Other errors are the model's.
  static absl::StatusOr<PrefilledPrompts> Create(const EvalModel& model,
                                                 std::span<const Prompt> prompts);

  // As SequenceRows::blocks.
  std::span<const kv::BlockId> blocks(size_t prompt) const { return leases_[prompt].blocks(); }
  // The most likely token behind the prompt.
  TokenId first_token(size_t prompt) const { return first_tokens_[prompt]; }

 private:
  PrefilledPrompts() = default;
  absl::Status Compute(const EvalModel& model, std::span<const Prompt> prompts);

  std::vector<kv::BlockLease> leases_;
  std::vector<TokenId> first_tokens_;
};

}  // namespace lynx::cli
