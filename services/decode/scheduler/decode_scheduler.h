#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "common/kv/kv_layout.h"

namespace lynx::decode {

using SequenceId = uint64_t;

// Decides which sequences the next step advances, which get another block, and which must give
// their blocks up.
//
// Continuous batching: sequences join and leave between steps. Blocks are granted for the prompt
// and one more, grow as tokens come and return as windows pass, so the pool can run out; then the
// youngest sequence is preempted: it loses its blocks, and its tokens are recomputed when room
// returns. The oldest always advances, and no sequence is admitted that could not fit alone, so
// every one ends.
//
// Pure bookkeeping over counts; the caller holds the leases. Not thread-safe.
class DecodeScheduler {
 public:
  struct Options {
    int32_t max_batch = 64;   // > 0: sequences in a step.
    int32_t step_rows = 256;  // >= max_batch: rows of a step; what decoding leaves recomputes.
    int32_t pool_blocks = 0;  // > 0
    kv::KvGroups groups = {};
  };

  // Rows of one sequence in the next step: the last sampled token (one decode row), or a chunk of
  // the tokens a preempted sequence must recompute.
  struct Work {
    SequenceId id = 0;
    int32_t start = 0;  // Position of the first row.
    int32_t rows = 0;
    bool recompute = false;
    bool samples = false;  // The last row's logits choose the next token.
  };

  struct Step {
    std::vector<SequenceId> preempt;  // Release these sequences' blocks first,
    // then lease so many more for these, or below 0 give back, in this order,
    std::vector<std::pair<SequenceId, int32_t>> change;
    std::vector<Work> work;  // then run this.
  };

  explicit DecodeScheduler(const Options& options);

  // Adds a sequence after those already here: `tokens` known tokens (prompt and sampled ones), all
  // KV that the last one attends to in tables that reach to `end_block`.
  void Add(SequenceId id, int32_t tokens, int32_t end_block);

  // Forgets a sequence; its blocks are the caller's to release. Unknown ids are ignored.
  void Remove(SequenceId id);

  // Plans the next step given how many blocks the pool has free now. Rows count as computed.
  Step Next(int32_t free_blocks);

  // The sequence's step sampled a token.
  void OnToken(SequenceId id);

  // Blocks to leave free when granting to newcomers, so that those running can go on for a while.
  int32_t headroom_blocks() const;

  int32_t sequences() const { return static_cast<int32_t>(entries_.size()); }
  int32_t running() const;    // With blocks and nothing to recompute, within the batch limit.
  int32_t preempted() const;  // Without blocks or still recomputing.

 private:
  struct Entry {
    int32_t tokens = 0;     // Known tokens.
    int32_t computed = 0;   // Tokens whose KV is in place; tokens - 1 when ready to decode.
    int32_t end_block = 0;  // Of its tables.
    int64_t blocks = 0;     // Held.
    bool recomputing = false;
  };
  // What the entry is to hold in the next step; its tables then reach to entry.end_block.
  int64_t BlocksToHold(Entry& entry) const;
  // Of a sequence that computes all of `tokens` tokens again.
  int64_t BlocksToRecompute(int32_t tokens) const;

  const Options options_;
  std::map<uint64_t, std::pair<SequenceId, Entry>> by_age_;  // Order of arrival.
  std::map<SequenceId, uint64_t> entries_;                   // Id to age key.
  uint64_t next_age_ = 1;
};

}  // namespace lynx::decode
