#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <vector>

#include "absl/status/status.h"

namespace lynx::prefill {

using SequenceId = uint64_t;

// Decides which prompt tokens the next step computes: prompts in order of arrival, cut into chunks
// so that a step stays within its row budget. Several short prompts share a step.
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

  // Rows of one prompt in the next step.
  struct Chunk {
    SequenceId id = 0;
    int32_t start = 0;
    int32_t rows = 0;
    bool last = false;  // Completes the prompt.
  };

  explicit PrefillScheduler(const Options& options);

  // Queues a prompt; `all_logits` when every row's logits are wanted and not just the last one's.
  // ResourceExhausted: a bound is reached, try later or elsewhere. AlreadyExists: the id is queued.
  // InvalidArgument: no tokens.
  absl::Status Add(SequenceId id, int32_t prompt_tokens, bool all_logits = false);

  // Forgets a prompt, wherever it is. Unknown ids are ignored.
  void Remove(SequenceId id);

  // The next step; empty when nothing can run. `start` is asked once for each prompt that comes to
  // its first chunk: when it has what it needs (KV blocks), how many of its tokens are computed
  // already, fewer than all; nothing to wait. A prompt that waits holds up those behind it, so that
  // a large one cannot starve.
  //
  // The rows count as computed: a step that fails removes its prompts.
  std::vector<Chunk> Next(const std::function<std::optional<int32_t>(SequenceId)>& start);

  int32_t jobs() const { return static_cast<int32_t>(jobs_.size()); }
  // Prompts of which nothing is computed yet.
  int32_t waiting() const;
  int64_t queued_tokens() const { return queued_tokens_; }

 private:
  struct Job {
    SequenceId id = 0;
    int32_t prompt_tokens = 0;
    int32_t computed = 0;
    bool all_logits = false;
    bool started = false;
  };

  const Options options_;
  std::deque<Job> jobs_;  // Order of arrival; a prompt leaves with its last chunk.
  int64_t queued_tokens_ = 0;
};

}  // namespace lynx::prefill
