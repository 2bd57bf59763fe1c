#pragma once

#include <compare>
#include <cstdint>
#include <limits>
#include <map>
#include <utility>
#include <vector>

#include "common/base/fair_share.h"
#include "common/kv/kv_layout.h"

namespace lynx::decode {

using SequenceId = uint64_t;

// Whose a sequence is.
struct Claim {
  int32_t priority = 0;
  TenantId tenant = 0;
};

// Decides which sequences the next step advances, which get another block, and which must give
// their blocks up.
//
// Continuous batching: sequences join and leave between steps. Blocks are granted for the prompt
// and one more, grow as tokens come and return as windows pass, so the pool can run out; then the
// last in rank is preempted: it loses its blocks, and its tokens are recomputed when room returns.
// The first in rank always advances, and no sequence is admitted that could not fit alone, so every
// one ends. A prompt that is to be computed here comes as one that was preempted.
//
// Tokens are computed again in chunks beside the rows of those that decode, few enough that these
// do not wait long. The first in rank of those that compute chunks has a fixed share of their rows,
// so it ends in a bounded number of steps; the others go by priority, by tenant, and the shortest
// first, so that a short prompt does not wait for the long ones before it.
//
// The lower priority ranks first, always. Among equal ones each tenant has an equal share: the more
// tokens it has here already, the further back its next sequence ranks. Those of one tenant rank in
// order of arrival. A rank never changes, so no two sequences take turns in preempting each other.
//
// Blocks that sequences may share with each other (a prefix) are not counted as the sequence's own:
// only whoever holds the leases knows what comes free when one lets go of them.
//
// Pure bookkeeping over counts; the caller holds the leases. Not thread-safe.
class DecodeScheduler {
 public:
  // Whoever holds the leases; called while Next() plans.
  class Leases {
   public:
    virtual ~Leases() = default;
    // Takes all blocks of the sequence away; how many came free.
    virtual int64_t Preempt(SequenceId id) = 0;
    // Leases what a preempted sequence takes to compute its tokens again, of `free_blocks` at most.
    struct Resumed {
      int32_t tokens = 0;  // Whole blocks of its KV that are still here, and may be shared.
      int64_t taken = 0;   // Blocks that are free no more.
    };
    virtual Resumed Resume(SequenceId id, int64_t free_blocks) = 0;
  };

  struct Options {
    int32_t max_batch = 64;   // > 0: sequences in a step.
    int32_t step_rows = 256;  // >= max_batch: rows of a step; what decoding leaves recomputes.
    // > 0: of these, the rows of chunks in a step that decodes, too.
    int32_t chunk_rows = std::numeric_limits<int32_t>::max();
    int32_t pool_blocks = 0;  // > 0
    kv::KvGroups groups = {};
  };

  // Rows of one sequence in the next step: the last sampled token (one decode row), or a chunk of
  // the tokens that a prompt, or a preempted sequence, has to compute.
  struct Work {
    SequenceId id = 0;
    int32_t start = 0;  // Position of the first row.
    int32_t rows = 0;
    bool recompute = false;
    bool samples = false;  // The last row's logits choose the next token.
  };

  struct Step {
    // Lease so many more blocks for these, or below 0 give back, in this order,
    std::vector<std::pair<SequenceId, int32_t>> change;
    std::vector<Work> work;  // then run this.
  };

  static constexpr int32_t kShareOfFirst = 4;  // A fourth of the rows of chunks, at least one.

  explicit DecodeScheduler(const Options& options);

  // Adds a sequence: `tokens` known tokens (prompt and sampled ones), all KV that the last one
  // attends to in tables that reach to `end_block`. Blocks before `shared_end` may be shared.
  void Add(SequenceId id, int32_t tokens, int32_t end_block, int32_t shared_end = 0,
           const Claim& claim = {});

  // Adds a sequence of which nothing is sampled or held: it comes to its blocks as a preempted one
  // does. `all_logits`: those of every row are wanted, and a step has max_batch of them.
  void AddPrompt(SequenceId id, int32_t tokens, bool all_logits, const Claim& claim = {});

  // Forgets a sequence; its blocks are the caller's to release. Unknown ids are ignored.
  void Remove(SequenceId id);

  // Plans the next step given how many blocks the pool has free now. Rows count as computed; who is
  // preempted or comes back has been when this returns.
  Step Next(int32_t free_blocks, Leases& leases);

  // The sequence's step sampled a token.
  void OnToken(SequenceId id);

  // Blocks to leave free when granting to newcomers, so that those running can go on for a while.
  int32_t headroom_blocks() const;

  int32_t sequences() const { return static_cast<int32_t>(entries_.size()); }
  int32_t running() const;        // With blocks and nothing to recompute, within the batch limit.
  int32_t preempted() const;      // Without blocks or still recomputing.
  int64_t queued_tokens() const;  // Of these, tokens still to compute.

 private:
  struct Rank {
    int32_t priority = 0;
    double place = 0;  // Of its tenant, when it came.
    uint64_t age = 0;  // Order of arrival.
    friend auto operator<=>(const Rank&, const Rank&) = default;
  };
  struct Entry {
    int32_t tokens = 0;      // Known tokens.
    int32_t computed = 0;    // Tokens whose KV is in place; tokens - 1 when ready to decode.
    int32_t end_block = 0;   // Of its tables.
    int32_t shared_end = 0;  // Blocks before it may be shared.
    int64_t own_blocks = 0;  // Held, those that may be shared not counted.
    bool has_blocks = false;
    bool recomputing = false;
    bool all_logits = false;
    TenantId tenant = 0;
    int32_t charged = 0;  // Tokens that its tenant was charged when it came.
  };
  void Insert(SequenceId id, Entry entry, const Claim& claim);
  // How many of `rows` each that computes a chunk in the next step may have, for `logits` rows of
  // logits; of the first max_batch in rank.
  std::map<SequenceId, int32_t> ShareRows(int32_t rows, int32_t logits) const;
  // What the entry is to hold of its own in the next step; its tables then reach to
  // entry.end_block.
  int64_t OwnBlocks(Entry& entry) const;
  // Of a sequence that computes all of `tokens` tokens again.
  int64_t BlocksToRecompute(int32_t tokens) const;
  // Gives it room to do so, which there is; how many blocks that took.
  int64_t Resume(SequenceId id, Entry& entry, int64_t free_blocks, Leases& leases) const;

  const Options options_;
  std::map<Rank, std::pair<SequenceId, Entry>> by_rank_;
  std::map<SequenceId, Rank> entries_;
  FairShare shares_;  // In tokens.
  uint64_t next_age_ = 1;
};

}  // namespace lynx::decode
