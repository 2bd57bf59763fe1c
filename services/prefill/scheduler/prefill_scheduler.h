#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/base/fair_share.h"
#include "common/base/step_time.h"

namespace lynx::prefill {

using SequenceId = uint64_t;

// Decides which prompt tokens the next step computes: prompts cut into chunks so that a step stays
// within its row budget. Several prompts share a step.
//
// Within a priority nobody starves. The oldest prompt under way of the lowest there is has a fixed
// share of every step, so it ends within a bounded number of steps whatever arrives, and then the
// next is the oldest. The other rows go by TurnOrder: tenants in turn, and the shortest first, so
// that a short prompt does not wait for the long ones before it.
//
// A prompt under way has all the blocks it will need. One for which there is no room may be
// overtaken by younger prompts, together as long as it is itself; then they wait behind it, except
// those of a lower priority.
//
// Pure bookkeeping; owns no memory, knows no tokens. Not thread-safe.
class PrefillScheduler {
 public:
  struct Options {
    int32_t step_rows = 512;              // > 0: rows of one step.
    int32_t step_logits = 64;             // > 0: rows of one step whose logits are wanted.
    int32_t max_jobs = 1024;              // > 0: prompts waiting or running.
    int64_t max_queued_tokens = 1 << 22;  // > 0: prompt tokens not yet computed.
  };
  static constexpr int32_t kShareOfOldest = 4;  // A fourth of the rows, at least one.
  static constexpr int32_t kMostDenials = 4;    // In a step; then nobody else asks for room.

  struct Prompt {
    SequenceId id = 0;
    int32_t tokens = 0;
    absl::Time deadline = absl::InfiniteFuture();
    bool all_logits = false;  // Every row's logits are wanted and not just the last one's.
    int32_t priority = 0;     // Lower goes first, always.
    TenantId tenant = 0;
  };

  // Rows of one prompt in the next step.
  struct Chunk {
    SequenceId id = 0;
    int32_t start = 0;
    int32_t rows = 0;
    bool last = false;  // Completes the prompt.
  };

  explicit PrefillScheduler(const Options& options);

  // Queues a prompt.
  // ResourceExhausted: a bound is reached, try later or elsewhere. AlreadyExists: the id is queued.
  // InvalidArgument: no tokens.
  absl::Status Add(const Prompt& prompt);

  // Forgets a prompt, wherever it is. Unknown ids are ignored.
  void Remove(SequenceId id);

  // The next step; empty when nothing can run. `start` is asked for each prompt that comes to its
  // first chunk, until it does: when it has what it needs (KV blocks), how many of its tokens are
  // computed already, fewer than all; nothing to wait. `step_time`: what steps have cost of late.
  //
  // The rows count as computed: a step that fails removes its prompts.
  std::vector<Chunk> Next(absl::Time now, const StepTime& step_time,
                          const std::function<std::optional<int32_t>(SequenceId)>& start);

  int32_t jobs() const { return static_cast<int32_t>(jobs_.size()); }
  // Prompts of which nothing is computed yet.
  int32_t waiting() const;
  int64_t queued_tokens() const { return queued_tokens_; }

 private:
  struct Job {
    Prompt prompt;
    int64_t arrival = 0;
    int32_t computed = 0;
    bool started = false;
    bool denied = false;       // Asked for room in vain.
    int64_t overtaken_by = 0;  // Tokens of younger prompts that have started since.
    int32_t chunk_rows = 0;    // In the step that is being planned.
    int32_t left() const { return prompt.tokens - computed; }
  };
  using StartFunction = std::function<std::optional<int32_t>(SequenceId)>;
  // What is left of a step that is being planned.
  struct Budget {
    int32_t rows = 0;
    int32_t logits = 0;
    int32_t denials = kMostDenials;
  };

  // Whether the job is under way, asking for room if it is not.
  bool Start(Job& job, const StartFunction& start, Budget& budget);
  void Give(Job& job, int32_t most_rows, Budget& budget);

  const Options options_;
  std::deque<Job> jobs_;  // Order of arrival; a prompt leaves with its last chunk.
  FairShare shares_;      // In rows.
  int64_t next_arrival_ = 1;
  int64_t queued_tokens_ = 0;
};

}  // namespace lynx::prefill
