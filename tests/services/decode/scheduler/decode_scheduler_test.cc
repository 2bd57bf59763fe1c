#include "services/decode/scheduler/decode_scheduler.h"

#include <algorithm>
#include <map>
#include <optional>
#include <random>
#include <span>
#include <utility>
#include <vector>

#include "common/kv/block_table.h"
#include "common/kv/prefix_cache.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lynx::decode {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;
using ::testing::SizeIs;

// Sequences that share nothing, by what blocks each holds.
class Counts : public DecodeScheduler::Leases {
 public:
  explicit Counts(std::map<SequenceId, int64_t> its_held = {}) : held(std::move(its_held)) {}
  int64_t Preempt(SequenceId id) override {
    preempted.push_back(id);
    return std::exchange(held[id], 0);
  }
  Resumed Resume(SequenceId id, int64_t) override { return {.taken = held[id] = to_resume}; }

  std::map<SequenceId, int64_t> held;
  int64_t to_resume = 0;
  std::vector<SequenceId> preempted = {};
};

TEST(DecodeSchedulerTest, EverySequenceAdvancesByOneTokenAStep) {
  DecodeScheduler scheduler({.max_batch = 4, .step_rows = 8, .pool_blocks = 16});
  scheduler.Add(1, 10, 1);
  scheduler.Add(2, 20, 2);
  Counts leases;
  const auto step = scheduler.Next(/*free_blocks=*/13, leases);
  EXPECT_THAT(leases.preempted, IsEmpty());
  EXPECT_THAT(step.change, IsEmpty());
  ASSERT_THAT(step.work, SizeIs(2));
  EXPECT_EQ(step.work[0].start, 9);
  EXPECT_EQ(step.work[1].start, 19);
  for (const auto& work : step.work) {
    EXPECT_EQ(work.rows, 1);
    EXPECT_TRUE(work.samples);
    EXPECT_FALSE(work.recompute);
  }
}

TEST(DecodeSchedulerTest, ABlockIsAddedJustBeforeTheRowThatNeedsIt) {
  DecodeScheduler scheduler({.max_batch = 4, .step_rows = 8, .pool_blocks = 4});
  Counts leases;
  scheduler.Add(1, 16, 1);
  EXPECT_THAT(scheduler.Next(3, leases).change, IsEmpty());
  scheduler.OnToken(1);
  EXPECT_THAT(scheduler.Next(3, leases).change, ElementsAre(Pair(1, 1)));
}

TEST(DecodeSchedulerTest, WhenThePoolRunsOutTheYoungestGivesItsBlocksUp) {
  DecodeScheduler scheduler({.max_batch = 4, .step_rows = 8, .pool_blocks = 4});
  scheduler.Add(1, 17, 1);
  scheduler.Add(2, 10, 1);
  scheduler.Add(3, 30, 2);
  Counts leases({{1, 1}, {2, 1}, {3, 2}});
  const auto step = scheduler.Next(/*free_blocks=*/0, leases);
  EXPECT_THAT(leases.preempted, ElementsAre(3));
  EXPECT_THAT(step.change, ElementsAre(Pair(1, 1)));
  ASSERT_THAT(step.work, SizeIs(2));
  EXPECT_EQ(scheduler.preempted(), 1);
  EXPECT_GE(scheduler.headroom_blocks(), 2) << "newcomers must not take what 3 waits for";

  // 2 ends: 3 comes back with room for all its tokens and recomputes them in chunks.
  scheduler.OnToken(1);
  scheduler.Remove(2);
  leases.to_resume = 2;
  const auto back = scheduler.Next(/*free_blocks=*/2, leases);
  EXPECT_THAT(back.change, ElementsAre(Pair(3, 2)));
  ASSERT_THAT(back.work, SizeIs(2));
  EXPECT_TRUE(back.work[1].recompute);
  EXPECT_EQ(back.work[1].start, 0);
  EXPECT_EQ(back.work[1].rows, 7);
  EXPECT_FALSE(back.work[1].samples);
}

TEST(DecodeSchedulerTest, MoreThanABatchWaitsItsTurnInOrderOfArrival) {
  DecodeScheduler scheduler({.max_batch = 2, .step_rows = 2, .pool_blocks = 8});
  for (SequenceId id = 1; id <= 3; ++id) scheduler.Add(id, 5, 1);
  EXPECT_EQ(scheduler.running(), 2);
  Counts leases;
  const auto step = scheduler.Next(5, leases);
  ASSERT_THAT(step.work, SizeIs(2));
  EXPECT_EQ(step.work[0].id, 1u);
  EXPECT_EQ(step.work[1].id, 2u);
  scheduler.Remove(1);
  scheduler.OnToken(2);
  EXPECT_EQ(scheduler.Next(6, leases).work.back().id, 3u);
}

TEST(DecodeSchedulerTest, TheHigherPriorityNumberGivesItsBlocksUpFirst) {
  DecodeScheduler scheduler({.max_batch = 4, .step_rows = 8, .pool_blocks = 4});
  scheduler.Add(1, 10, 1, 0, {.priority = 3});
  scheduler.Add(2, 30, 2);
  scheduler.Add(3, 17, 1);  // Needs another block.
  Counts leases({{1, 1}, {2, 2}, {3, 1}});
  const auto step = scheduler.Next(/*free_blocks=*/0, leases);
  EXPECT_THAT(leases.preempted, ElementsAre(1));
  EXPECT_THAT(step.change, ElementsAre(Pair(3, 1)));
}

TEST(DecodeSchedulerTest, TheTenantThatHasMoreGivesItsBlocksUpFirst) {
  DecodeScheduler scheduler({.max_batch = 4, .step_rows = 8, .pool_blocks = 4});
  scheduler.Add(1, 17, 1, 0, {.tenant = 7});
  scheduler.Add(2, 10, 1, 0, {.tenant = 7});
  scheduler.Add(3, 30, 2, 0, {.tenant = 8});
  Counts leases({{1, 1}, {2, 1}, {3, 2}});
  scheduler.Next(/*free_blocks=*/0, leases);
  EXPECT_THAT(leases.preempted, ElementsAre(2));
}

// Rows of each sequence in a step, in its order.
std::vector<std::pair<SequenceId, int32_t>> Rows(const DecodeScheduler::Step& step) {
  std::vector<std::pair<SequenceId, int32_t>> rows;
  for (const auto& work : step.work) rows.emplace_back(work.id, work.rows);
  return rows;
}

TEST(DecodeSchedulerTest, APromptIsComputedInChunksBesideThoseThatDecode) {
  DecodeScheduler scheduler({.max_batch = 4, .step_rows = 64, .chunk_rows = 10, .pool_blocks = 16});
  scheduler.Add(1, 10, 1);
  Counts leases;
  leases.to_resume = 2;
  scheduler.AddPrompt(2, 24, /*all_logits=*/false);
  EXPECT_EQ(scheduler.queued_tokens(), 24);
  EXPECT_EQ(scheduler.headroom_blocks(), 3) << "what the prompt takes is for nobody else";
  EXPECT_THAT(Rows(scheduler.Next(15, leases)), ElementsAre(Pair(1, 1), Pair(2, 10)));
  scheduler.OnToken(1);
  EXPECT_THAT(Rows(scheduler.Next(13, leases)), ElementsAre(Pair(1, 1), Pair(2, 10)));
  EXPECT_EQ(scheduler.queued_tokens(), 4);
  scheduler.OnToken(1);
  const auto last = scheduler.Next(13, leases);
  EXPECT_THAT(Rows(last), ElementsAre(Pair(1, 1), Pair(2, 4)));
  EXPECT_TRUE(last.work[1].samples);
  scheduler.OnToken(1);
  scheduler.OnToken(2);
  const auto decode = scheduler.Next(13, leases);
  EXPECT_THAT(Rows(decode), ElementsAre(Pair(1, 1), Pair(2, 1)));
  EXPECT_FALSE(decode.work[1].recompute);
  EXPECT_EQ(decode.work[1].start, 24);
}

TEST(DecodeSchedulerTest, PromptsAloneTakeWholeSteps) {
  DecodeScheduler scheduler({.max_batch = 4, .step_rows = 64, .chunk_rows = 10, .pool_blocks = 16});
  Counts leases;
  scheduler.AddPrompt(1, 40, /*all_logits=*/false);
  scheduler.AddPrompt(2, 40, /*all_logits=*/false);
  EXPECT_THAT(Rows(scheduler.Next(16, leases)), ElementsAre(Pair(1, 40), Pair(2, 24)));
}

// Whether `id` samples in the step.
bool Samples(const DecodeScheduler::Step& step, SequenceId id) {
  return std::ranges::any_of(step.work,
                             [&](const auto& work) { return work.id == id && work.samples; });
}

TEST(DecodeSchedulerTest, AShortPromptDoesNotWaitForTheLongOnesBeforeIt) {
  DecodeScheduler scheduler({.max_batch = 16, .step_rows = 64, .pool_blocks = 2048});
  for (SequenceId id = 1; id <= 10; ++id) scheduler.AddPrompt(id, 1680, /*all_logits=*/false);
  Counts leases;
  scheduler.Next(2048, leases);
  scheduler.AddPrompt(11, 40, /*all_logits=*/false);
  EXPECT_TRUE(Samples(scheduler.Next(2048, leases), 11));
}

TEST(DecodeSchedulerTest, ALongPromptThatIsFirstEndsWhateverComes) {
  DecodeScheduler scheduler({.max_batch = 16, .step_rows = 64, .pool_blocks = 2048});
  scheduler.AddPrompt(1, 640, /*all_logits=*/false);
  Counts leases;
  int steps = 1;
  SequenceId next = 2;
  for (;; ++steps) {
    ASSERT_LE(steps, 40) << "a fourth of 64 rows a step";
    for (int i = 0; i < 2; ++i) scheduler.AddPrompt(next++, 50, /*all_logits=*/false);
    const auto step = scheduler.Next(2048, leases);
    if (Samples(step, 1)) break;
    for (const auto& work : step.work) {
      if (work.samples) scheduler.Remove(work.id);
    }
  }
  EXPECT_GE(steps, 35) << "the others have what is left";
}

TEST(DecodeSchedulerTest, AChunkNeverTakesTheRowsOfThoseThatDecodeBehindIt) {
  DecodeScheduler scheduler({.max_batch = 4, .step_rows = 8, .pool_blocks = 16});
  Counts leases;
  scheduler.Add(1, 10, 1, 0, {.priority = 2});
  scheduler.Add(2, 10, 1, 0, {.priority = 2});
  scheduler.AddPrompt(3, 100, /*all_logits=*/false, {.priority = 1});
  EXPECT_THAT(Rows(scheduler.Next(14, leases)), ElementsAre(Pair(3, 6), Pair(1, 1), Pair(2, 1)));
}

TEST(DecodeSchedulerTest, OfAPromptWhoseLogitsAreAllWantedAStepTakesWhatItHasLogitsFor) {
  DecodeScheduler scheduler({.max_batch = 4, .step_rows = 64, .pool_blocks = 16});
  Counts leases;
  scheduler.Add(1, 10, 1);
  scheduler.AddPrompt(2, 20, /*all_logits=*/true);
  scheduler.AddPrompt(3, 20, /*all_logits=*/false);
  EXPECT_THAT(Rows(scheduler.Next(14, leases)), ElementsAre(Pair(1, 1), Pair(2, 3)));
}

// A model of the pool: whatever arrives and ends, blocks are never over-committed, rows of each
// sequence are contiguous, and every sequence reaches its end.
TEST(DecodeSchedulerTest, ConservesBlocksAndFinishesEverySequenceUnderPressure) {
  for (uint32_t seed : {1u, 2u, 3u, 4u, 5u}) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    std::mt19937 rng(seed);
    constexpr int32_t kPool = 9;
    DecodeScheduler scheduler({.max_batch = 4, .step_rows = 24, .pool_blocks = kPool});
    struct Model {
      int32_t tokens, target, computed, blocks;
    };
    struct : DecodeScheduler::Leases {
      int64_t Preempt(SequenceId id) override {
        Model& model = live.at(id);
        const int32_t freed = std::exchange(model.blocks, 0);
        free += freed;
        model.computed = 0;
        ++preemptions;
        return freed;
      }
      Resumed Resume(SequenceId id, int64_t) override {
        return {.taken = kv::BlocksFor(live.at(id).tokens)};
      }
      std::map<SequenceId, Model> live;
      int32_t free = kPool;
      int preemptions = 0;
    } leases;
    std::map<SequenceId, Model>& live = leases.live;
    int32_t& free = leases.free;
    const int& preemptions = leases.preemptions;
    int started = 0;
    int finished = 0;
    for (int round = 0; round < 20000 && finished < 60; ++round) {
      if (started < 60 && rng() % 3 == 0) {
        const auto prompt = static_cast<int32_t>(1 + rng() % 60);
        const auto blocks = static_cast<int32_t>(kv::BlocksFor(prompt)) + 1;
        if (blocks + scheduler.headroom_blocks() <= free || (live.empty() && blocks <= free)) {
          const SequenceId id = static_cast<SequenceId>(++started);
          free -= blocks;
          const auto extra = static_cast<int32_t>(1 + rng() % 70);
          live[id] = {prompt + 1, prompt + 1 + extra, prompt, blocks};
          scheduler.Add(id, prompt + 1, blocks, 0,
                        {.priority = seed < 4 ? 0 : static_cast<int32_t>(rng() % 3),
                         .tenant = seed < 3 ? 0 : rng() % 3});
        }
      }
      const auto step = scheduler.Next(free, leases);
      for (const auto& [id, more] : step.change) {
        free -= more;
        live.at(id).blocks += more;
      }
      ASSERT_GE(free, 0) << "round " << round;
      int32_t rows = 0;
      for (const auto& work : step.work) {
        Model& model = live.at(work.id);
        ASSERT_EQ(work.start, model.computed);
        model.computed += work.rows;
        rows += work.rows;
        ASSERT_LE(model.computed, model.blocks * kv::kBlockTokens);
        ASSERT_EQ(work.samples, model.computed == model.tokens);
        if (work.samples) {
          ++model.tokens;
          scheduler.OnToken(work.id);
          if (model.tokens >= model.target) {
            free += model.blocks;
            scheduler.Remove(work.id);
            live.erase(work.id);
            ++finished;
          }
        }
      }
      ASSERT_LE(rows, 24);
      int32_t held = 0;
      for (const auto& [id, model] : live) held += model.blocks;
      ASSERT_EQ(held + free, kPool);
    }
    EXPECT_EQ(finished, 60);
    EXPECT_GT(preemptions, 0) << "the pool is small enough that this test must preempt";
  }
}

// The plan's counts are those of real tables, which do with them what DecodeNode does; with a cache
// they share prefixes, lose them and find them again.
void PlanForTables(const kv::KvGroups& groups, bool with_cache) {
  constexpr int32_t kRows = 24;
  const auto pool_blocks = static_cast<int32_t>(groups.MostBlocks(130, kRows));
  int shared_prompts = 0;
  int shared_recomputes = 0;
  for (uint32_t seed = 1; seed <= 8; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed << (with_cache ? ", a cache" : ""));
    std::mt19937 rng(seed);
    kv::BlockPool pool(pool_blocks, groups);
    std::optional<kv::PrefixCache> cache;
    if (with_cache) cache.emplace(pool);
    DecodeScheduler scheduler(
        {.max_batch = 4, .step_rows = kRows, .pool_blocks = pool_blocks, .groups = groups});
    constexpr kv::PrefixHash kRoot = 1;
    struct Model {
      std::vector<TokenId> tokens;
      size_t target = 0;
      int32_t computed = 0;
      bool reserved = false;
      kv::BlockTable table;
    };
    struct Tables : DecodeScheduler::Leases {
      int64_t Preempt(SequenceId id) override {
        Model& model = live.at(id);
        const int32_t before = pool->free_blocks();
        Keep(model);
        model.table.Reset();
        model.computed = 0;
        ++preemptions;
        return pool->free_blocks() - before;
      }
      Resumed Resume(SequenceId id, int64_t free_blocks) override {
        Model& model = live.at(id);
        const int32_t before = pool->free_blocks();
        const int64_t most =
            pool->groups().MostBlocks(static_cast<int64_t>(model.tokens.size()), kRows);
        if (cache != nullptr) model.table = cache->Find(kRoot, model.tokens, false).blocks;
        int64_t need = most + model.table.shared_in_windows();
        if (before - pool->free_blocks() + need - model.table.held_blocks() > free_blocks) {
          model.table.Reset();
          need = most;
        }
        EXPECT_TRUE(model.table.Reserve(*pool, need).ok());
        model.computed = static_cast<int32_t>(model.table.capacity_tokens());
        model.reserved = true;
        if (model.computed > 0) ++resumed_early;
        return {.tokens = model.computed, .taken = before - pool->free_blocks()};
      }
      void Keep(const Model& model) {
        if (cache == nullptr) return;
        cache->Keep(kRoot, std::span(model.tokens).first(static_cast<size_t>(model.computed)),
                    1 << 30, model.table);
      }
      kv::BlockPool* pool = nullptr;
      kv::PrefixCache* cache = nullptr;
      std::map<SequenceId, Model> live;
      int preemptions = 0;
      int resumed_early = 0;
    } leases;
    leases.pool = &pool;
    leases.cache = with_cache ? &*cache : nullptr;
    std::map<SequenceId, Model>& live = leases.live;
    int started = 0;
    int finished = 0;
    for (int round = 0; round < 20000 && finished < 60; ++round) {
      if (started < 60 && rng() % 3 == 0) {
        const auto prompt = static_cast<int32_t>(1 + rng() % 60);
        const int64_t end = kv::BlocksFor(prompt) + 1;
        Model model;
        // Few kinds of tokens, so that prompts often begin alike.
        const auto token = static_cast<TokenId>(rng() % 3);
        const Claim claim = {.priority = seed % 2 == 0 ? 0 : static_cast<int32_t>(rng() % 3),
                             .tenant = rng() % 3};
        if (seed > 6 &&
            groups.MostBlocks(prompt, kRows) + scheduler.headroom_blocks() <= pool.free_blocks()) {
          model.tokens.assign(static_cast<size_t>(prompt), token);
          model.target = model.tokens.size() + 2 + rng() % 70;
          const SequenceId id = static_cast<SequenceId>(++started);
          live[id] = std::move(model);
          scheduler.AddPrompt(id, prompt, /*all_logits=*/rng() % 4 == 0, claim);
          continue;
        }
        model.tokens.assign(static_cast<size_t>(prompt) + 1, token);
        model.target = model.tokens.size() + 1 + rng() % 70;
        model.computed = prompt;
        if (with_cache) {
          model.table =
              cache->Find(kRoot, std::span(model.tokens).first(model.tokens.size() - 1), false)
                  .blocks;
        }
        if (!model.table.empty()) ++shared_prompts;
        model.table.ReleaseBefore(prompt);
        const int64_t missing = groups.BlocksHeld(prompt, end) - model.table.held_blocks();
        if (missing + scheduler.headroom_blocks() <= pool.free_blocks()) {
          const SequenceId id = static_cast<SequenceId>(++started);
          ASSERT_TRUE(model.table.Extend(pool, end * kv::kBlockTokens).ok());
          leases.Keep(model);
          live[id] = std::move(model);
          scheduler.Add(id, prompt + 1, static_cast<int32_t>(end),
                        with_cache ? prompt / kv::kBlockTokens : 0, claim);
        }
      }
      const auto step = scheduler.Next(pool.free_blocks(), leases);
      for (const auto& work : step.work) {
        Model& model = live.at(work.id);
        ASSERT_EQ(work.start, model.computed);
        if (!work.recompute) model.reserved = false;
        const int64_t before = model.table.held_blocks();
        model.table.ReleaseBefore(work.start);
        ASSERT_TRUE(model.table.Extend(pool, work.start + work.rows).ok()) << "round " << round;
        if (!model.reserved) model.table.ReleaseSpare();
        if (!with_cache && !work.recompute) {
          int64_t change = 0;
          for (const auto& [id, blocks] : step.change) change += id == work.id ? blocks : 0;
          ASSERT_EQ(model.table.held_blocks() - before, change) << "round " << round;
        }
        model.computed += work.rows;
      }
      for (const auto& work : step.work) {
        Model& model = live.at(work.id);
        if (!work.samples) continue;
        model.tokens.push_back(static_cast<TokenId>(rng() % 2));
        scheduler.OnToken(work.id);
        if (model.tokens.size() < model.target) continue;
        leases.Keep(model);
        scheduler.Remove(work.id);
        live.erase(work.id);
        ++finished;
      }
    }
    EXPECT_EQ(finished, 60);
    EXPECT_GT(leases.preemptions, 0) << "the pool is small enough that this test must preempt";
    EXPECT_EQ(pool.free_blocks(), pool_blocks);
    shared_recomputes += leases.resumed_early;
  }
  EXPECT_EQ(shared_prompts > 0, with_cache);
  EXPECT_EQ(shared_recomputes > 0, with_cache);
}

TEST(DecodeSchedulerTest, CountsWhatSequencesHold) {
  PlanForTables(kv::KvGroups(), /*with_cache=*/false);
  PlanForTables(kv::KvGroups(), /*with_cache=*/true);
}

TEST(DecodeSchedulerTest, CountsWhatSequencesWithWindowsHold) {
  const kv::KvGroups groups(
      std::vector<kv::Reach>{{}, {.window = 20}, {.chunk = 48}, {.window = 20}});
  ASSERT_EQ(groups.count(), 4);
  PlanForTables(groups, /*with_cache=*/false);
  PlanForTables(groups, /*with_cache=*/true);
}

// gpt-oss-20b: 12 layers of each kind.
TEST(DecodeSchedulerTest, ALongSequenceWithWindowsCostsHalf) {
  std::vector<kv::Reach> layers(24);
  for (size_t i = 0; i < layers.size(); i += 2) layers[i].window = 128;
  const kv::KvGroups groups(layers);
  constexpr int32_t kTokens = 131072;
  DecodeScheduler scheduler(
      {.max_batch = 1, .step_rows = 1, .pool_blocks = 1 << 20, .groups = groups});
  scheduler.Add(1, kTokens, kTokens / kv::kBlockTokens);
  Counts leases;
  int64_t held = groups.BlocksHeld(kTokens - 1, kTokens / kv::kBlockTokens);
  for (int i = 0; i < 100; ++i) {
    for (const auto& [id, change] : scheduler.Next(1 << 19, leases).change) held += change;
    scheduler.OnToken(1);
    EXPECT_LE(held, kTokens / kv::kBlockTokens + i / kv::kBlockTokens + 1 + 9);
  }
}

}  // namespace
}  // namespace lynx::decode
