#include "services/decode/scheduler/decode_scheduler.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>
#include <vector>

#include "common/base/check.h"

namespace lynx::decode {
namespace {

int32_t BlocksFor(int32_t tokens) { return static_cast<int32_t>(kv::BlocksFor(tokens)); }

}  // namespace

DecodeScheduler::DecodeScheduler(const Options& options) : options_(options) {
  LYNX_CHECK(options.max_batch > 0 && options.step_rows >= options.max_batch &&
             options.chunk_rows > 0 && options.pool_blocks > 0);
}

void DecodeScheduler::Add(SequenceId id, int32_t tokens, int32_t end_block, int32_t shared_end,
                          const Claim& claim) {
  LYNX_CHECK(tokens >= 2 && !entries_.contains(id) && BlocksFor(tokens - 1) <= end_block &&
             shared_end <= end_block);
  Entry entry = {.tokens = tokens,
                 .computed = tokens - 1,
                 .end_block = end_block,
                 .shared_end = shared_end,
                 .has_blocks = true};
  entry.own_blocks = options_.groups.BlocksHeld(entry.computed, end_block) -
                     options_.groups.BlocksHeld(entry.computed, shared_end);
  Insert(id, entry, claim);
}

void DecodeScheduler::AddPrompt(SequenceId id, int32_t tokens, bool all_logits,
                                const Claim& claim) {
  LYNX_CHECK(tokens > 0 && !entries_.contains(id));
  Insert(id, {.tokens = tokens, .recomputing = true, .all_logits = all_logits}, claim);
}

void DecodeScheduler::Insert(SequenceId id, Entry entry, const Claim& claim) {
  if (!by_rank_.empty()) {
    // Nobody who comes ranks before all who are here, so that the first of a priority ends.
    const auto least = std::min_element(
        by_rank_.begin(), by_rank_.end(),
        [](const auto& a, const auto& b) { return a.first.place < b.first.place; });
    shares_.Advance(least->first.place);
  }
  const Rank rank = {
      .priority = claim.priority, .place = shares_.Place(claim.tenant), .age = next_age_++};
  entry.tenant = claim.tenant;
  entry.charged = entry.tokens;
  by_rank_[rank] = {id, entry};
  entries_[id] = rank;
  shares_.Charge(claim.tenant, entry.tokens);
}

void DecodeScheduler::Remove(SequenceId id) {
  auto it = entries_.find(id);
  if (it == entries_.end()) return;
  auto sequence = by_rank_.find(it->second);
  shares_.Serve(sequence->second.second.charged);
  by_rank_.erase(sequence);
  entries_.erase(it);
}

int64_t DecodeScheduler::BlocksToRecompute(int32_t tokens) const {
  return options_.groups.MostBlocks(tokens, options_.step_rows);
}

int64_t DecodeScheduler::OwnBlocks(Entry& entry) const {
  if (entry.recomputing) return entry.own_blocks;
  // One that decodes needs room for the row it is about to write.
  entry.end_block = std::max(entry.end_block, BlocksFor(entry.tokens));
  return options_.groups.BlocksHeld(entry.computed, entry.end_block) -
         options_.groups.BlocksHeld(entry.computed, entry.shared_end);
}

int64_t DecodeScheduler::Resume(SequenceId id, Entry& entry, int64_t free_blocks,
                                Leases& leases) const {
  const Leases::Resumed resumed = leases.Resume(id, free_blocks);
  LYNX_CHECK(resumed.tokens >= 0 && resumed.tokens < entry.tokens && resumed.taken <= free_blocks);
  entry.computed = resumed.tokens;
  entry.shared_end = BlocksFor(resumed.tokens);
  entry.has_blocks = true;
  // Room for what windows pass is leased besides the shared blocks there: they do not become spare.
  entry.own_blocks = BlocksToRecompute(entry.tokens);
  for (int32_t g = 0; g < options_.groups.count(); ++g) {
    if (!options_.groups.reach(g).bounded()) entry.own_blocks -= entry.shared_end;
  }
  return resumed.taken;
}

std::map<SequenceId, int32_t> DecodeScheduler::ShareRows(int32_t rows, int32_t logits) const {
  struct Turn {
    int32_t priority = 0;
    double place = 0;     // Of the tenant's first in rank.
    int32_t missing = 0;  // As far as is known: a prefix may be held.
    uint64_t age = 0;
    SequenceId id = 0;
    bool all_logits = false;
  };
  std::vector<Turn> turns;
  std::map<std::pair<int32_t, TenantId>, double> places;
  int32_t batch = 0;
  for (const auto& [rank, sequence] : by_rank_) {
    if (batch++ == options_.max_batch) break;
    const auto& [id, entry] = sequence;
    if (!entry.recomputing) continue;
    const auto place = places.try_emplace({rank.priority, entry.tenant}, rank.place).first->second;
    turns.push_back(
        {rank.priority, place, entry.tokens - entry.computed, rank.age, id, entry.all_logits});
  }
  std::map<SequenceId, int32_t> shares;
  const auto give = [&](const Turn& turn, int32_t most) {
    int32_t& share = shares[turn.id];
    const bool first = share == 0;
    int32_t count = std::min({most, rows, turn.missing - share});
    if (turn.all_logits) {
      count = std::min(count, logits);
      logits -= count;
    } else if (first) {
      if (logits == 0) return;
      --logits;  // If the chunk is the last.
    }
    share += count;
    rows -= count;
  };
  if (turns.empty() || rows == 0) return shares;
  give(turns.front(), std::max(1, rows / kShareOfFirst));
  std::ranges::sort(turns, [](const Turn& a, const Turn& b) {
    return std::tie(a.priority, a.place, a.missing, a.age) <
           std::tie(b.priority, b.place, b.missing, b.age);
  });
  for (const Turn& turn : turns) {
    if (rows == 0) break;
    give(turn, rows);
  }
  return shares;
}

DecodeScheduler::Step DecodeScheduler::Next(int32_t free_now, Leases& leases) {
  Step step;
  int64_t free_blocks = free_now;
  // Decoding goes first. Of the first max_batch in rank one that computes a chunk leaves a row and
  // a row of logits.
  int32_t decoding = 0;
  int32_t batch = 0;
  for (auto it = by_rank_.begin(); it != by_rank_.end() && batch < options_.max_batch; ++it) {
    ++batch;
    if (!it->second.second.recomputing) ++decoding;
  }
  int32_t rows = options_.step_rows - decoding;
  if (decoding > 0) rows = std::min(rows, options_.chunk_rows);
  std::map<SequenceId, int32_t> shares = ShareRows(rows, options_.max_batch - decoding);
  const auto preempt = [&](SequenceId id, Entry& entry) {
    free_blocks += leases.Preempt(id);
    entry.computed = entry.end_block = entry.shared_end = 0;
    entry.own_blocks = 0;
    entry.has_blocks = false;
    entry.recomputing = true;
  };
  // Takes blocks from the last in rank, of those behind `rank`, until `need` are free.
  const auto make_room = [&](const Rank& rank, int64_t need) {
    for (auto it = by_rank_.rbegin();
         it != by_rank_.rend() && it->first > rank && free_blocks < need; ++it) {
      auto& [id, entry] = it->second;
      if (entry.has_blocks) preempt(id, entry);
    }
    return free_blocks >= need;
  };

  for (auto& [rank, sequence] : by_rank_) {
    auto& [id, entry] = sequence;
    if (batch-- == 0) break;
    const bool chunk = entry.recomputing;
    const int32_t share = chunk ? shares[id] : 1;
    if (share == 0) continue;
    // A preempted sequence comes back with room for all its tokens, so that it does not thrash.
    int64_t change =
        entry.has_blocks ? OwnBlocks(entry) - entry.own_blocks : BlocksToRecompute(entry.tokens);
    if (change > 0 && !make_room(rank, change)) {
      if (!entry.has_blocks) break;  // Waits for room; those behind it wait too.
      preempt(id, entry);
      break;
    }
    if (!entry.has_blocks) {
      change = Resume(id, entry, free_blocks, leases);
    } else {
      entry.own_blocks += change;
    }
    // What is given back may be shared: whether it is free the next step will see.
    free_blocks -= std::max<int64_t>(change, 0);
    if (change != 0) step.change.emplace_back(id, static_cast<int32_t>(change));
    const int32_t missing = entry.tokens - entry.computed;
    LYNX_CHECK(missing >
               0);  // A sampled row is answered by OnToken or Remove before the next step.
    const int32_t count = std::min(missing, share);
    step.work.push_back({id, entry.computed, count, chunk, count == missing});
    entry.computed += count;
    if (count == missing) {
      entry.recomputing = false;
      entry.end_block = std::max(entry.end_block, BlocksFor(entry.tokens));
    }
  }
  return step;
}

void DecodeScheduler::OnToken(SequenceId id) {
  auto it = entries_.find(id);
  if (it == entries_.end()) return;
  Entry& entry = by_rank_.at(it->second).second;
  ++entry.tokens;
  shares_.Charge(entry.tenant, 1);
  shares_.Serve(1);
}

int32_t DecodeScheduler::headroom_blocks() const {
  int64_t headroom = 0;
  for (const auto& [rank, sequence] : by_rank_) {
    const Entry& entry = sequence.second;
    // One more block in each group for each that runs, everything a preempted one must get back.
    headroom += entry.has_blocks ? options_.groups.count() : BlocksToRecompute(entry.tokens);
  }
  return static_cast<int32_t>(std::min<int64_t>(headroom, INT32_MAX));
}

int32_t DecodeScheduler::running() const {
  int32_t ready = 0;
  for (const auto& [rank, sequence] : by_rank_) {
    if (sequence.second.has_blocks && !sequence.second.recomputing) ++ready;
  }
  return std::min(ready, options_.max_batch);
}

int64_t DecodeScheduler::queued_tokens() const {
  int64_t tokens = 0;
  for (const auto& [rank, sequence] : by_rank_) {
    const Entry& entry = sequence.second;
    if (entry.recomputing) tokens += entry.tokens - entry.computed;
  }
  return tokens;
}

int32_t DecodeScheduler::preempted() const {
  int32_t count = 0;
  for (const auto& [rank, sequence] : by_rank_) count += sequence.second.recomputing ? 1 : 0;
  return count;
}

}  // namespace lynx::decode
