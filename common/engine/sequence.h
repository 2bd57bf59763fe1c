#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/dtype.h"
#include "common/engine/sampler.h"
#include "common/engine/sampling_params.h"
#include "common/kv/block_table.h"

namespace lynx::engine {

enum class FinishReason : uint8_t {
  kNone,    // Still going.
  kStop,    // A stop id was sampled.
  kLength,  // max_new_tokens or the context is used up.
};

// One stream of tokens: its prompt, what was sampled so far, and the KV blocks that hold a prefix
// of both.
//
// A stop token is the last of output(): it counts as output (as in vLLM's usage numbers) and is not
// part of the text.
//
// KV of positions [0, computed_tokens()) is in blocks(), but for what no later row attends to.
// Everything else about the sequence follows
// from (prompt, output, params), so its blocks may be dropped at any time between steps and
// computed again (Preempt), here or on another node (Create with the output so far).
//
// Owned by the thread that steps the engine; only Cancel() and cancelled() may be called from
// others. While a step that includes the sequence runs, the sequence must not be destroyed,
// preempted or given other blocks: this aborts. Who wants a sequence gone cancels it; the stepping
// thread frees it when Engine::Step has returned.
class Sequence {
 public:
  struct Limits {
    int32_t vocab_size = 0;          // > 0
    int32_t max_context_tokens = 0;  // > 1; prompt and output together.
  };

  // `output` holds what was sampled already, elsewhere or before a failure.
  //   InvalidArgument  empty prompt, token out of the vocabulary, bad params, or tokens after the
  //                    one that ends the sequence; the message names the field.
  //   OutOfRange       the prompt leaves no room in the context for one new token.
  static absl::StatusOr<std::unique_ptr<Sequence>> Create(std::vector<TokenId> prompt,
                                                          SamplingParams params,
                                                          const Limits& limits,
                                                          std::span<const TokenId> output = {});
  ~Sequence();
  Sequence(const Sequence&) = delete;
  Sequence& operator=(const Sequence&) = delete;

  // Prompt and output in one piece. Spans are valid until the next token is appended.
  std::span<const TokenId> tokens() const { return tokens_; }
  std::span<const TokenId> prompt() const { return tokens().first(prompt_tokens_); }
  std::span<const TokenId> output() const { return tokens().subspan(prompt_tokens_); }
  const SamplingParams& params() const { return params_; }
  FinishReason finish_reason() const { return finish_reason_; }
  bool finished() const { return finish_reason_ != FinishReason::kNone; }

  int32_t computed_tokens() const { return computed_tokens_; }
  // Tokens whose KV is still to be computed before the next one can be sampled: 1 in steady decode.
  int32_t pending_tokens() const { return static_cast<int32_t>(tokens_.size()) - computed_tokens_; }

  // Any thread; idempotent. The engine stops work on the sequence at the next layer where it can.
  void Cancel() { cancelled_.store(true, std::memory_order_relaxed); }
  bool cancelled() const { return cancelled_.load(std::memory_order_relaxed); }

  // Whose pool its blocks are of, and who computes it (model::SequenceRows).
  int32_t replica() const { return replica_; }
  // Of a sequence without blocks; >= 0.
  void PlaceOn(int32_t replica);

  const kv::BlockTable& blocks() const { return blocks_; }
  // Makes room to compute all up to `tokens` tokens: gives back what windows have passed, then
  // leases what is missing, unless that much is reserved; on an error nothing is leased.
  //   OutOfRange         more than the whole pool: never possible.
  //   ResourceExhausted  not enough free blocks now.
  absl::Status EnsureBlocks(kv::BlockPool& pool, int64_t tokens);
  // Leases the most that computing `tokens` tokens from the first on takes at any time, in steps of
  // up to `step_rows` rows, so that EnsureBlocks for them succeeds. Ends with EnsureBlocks beyond
  // them, or with ReleaseUnneeded(). Fails as EnsureBlocks.
  absl::Status ReserveBlocks(kv::BlockPool& pool, int64_t tokens, int32_t step_rows);
  // Gives back what no row from computed_tokens() on attends to, and what is reserved.
  void ReleaseUnneeded();
  // Takes over blocks with this sequence's KV as far as rows from `computed_tokens` on attend to
  // it: a received hand-off. The sequence must hold none. At least one token must stay to be
  // computed, as its logits are needed; the tables must reach far enough.
  void AdoptKv(kv::BlockTable blocks, int32_t computed_tokens);
  // Gives all blocks back; everything is to be computed again.
  void Preempt();
  // As Preempt, but hands the blocks to the caller: for a reader that outlives the sequence, such
  // as a transfer under way.
  kv::BlockTable TakeBlocks();

 private:
  friend class Engine;
  Sequence(std::vector<TokenId> prompt, SamplingParams params, const Limits& limits);
  void Append(TokenId token);

  const SamplingParams params_;
  const Limits limits_;
  const size_t prompt_tokens_;
  std::vector<TokenId> tokens_;
  SamplerState sampler_state_;
  FinishReason finish_reason_ = FinishReason::kNone;
  int32_t replica_ = 0;
  kv::BlockTable blocks_;
  int64_t reserved_tokens_ = 0;
  int32_t computed_tokens_ = 0;
  int32_t scored_rows_ = 0;  // Leading prompt rows whose log-probabilities were reported.
  bool in_step_ = false;
  std::atomic<bool> cancelled_ = false;
};

}  // namespace lynx::engine
