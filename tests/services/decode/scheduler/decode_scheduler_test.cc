#include "services/decode/scheduler/decode_scheduler.h"

#include <map>
#include <random>
#include <vector>

#include "common/kv/block_table.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lynx::decode {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;
using ::testing::SizeIs;

TEST(DecodeSchedulerTest, EverySequenceAdvancesByOneTokenAStep) {
  DecodeScheduler scheduler({.max_batch = 4, .step_rows = 8, .pool_blocks = 16});
  scheduler.Add(1, 10, 1);
  scheduler.Add(2, 20, 2);
  const auto step = scheduler.Next(/*free_blocks=*/13);
  EXPECT_THAT(step.preempt, IsEmpty());
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
  scheduler.Add(1, 16, 1);
  EXPECT_THAT(scheduler.Next(3).change, IsEmpty());
  scheduler.OnToken(1);
  EXPECT_THAT(scheduler.Next(3).change, ElementsAre(Pair(1, 1)));
}

TEST(DecodeSchedulerTest, WhenThePoolRunsOutTheYoungestGivesItsBlocksUp) {
  DecodeScheduler scheduler({.max_batch = 4, .step_rows = 8, .pool_blocks = 4});
  scheduler.Add(1, 17, 1);
  scheduler.Add(2, 10, 1);
  scheduler.Add(3, 30, 2);
  const auto step = scheduler.Next(/*free_blocks=*/0);
  EXPECT_THAT(step.preempt, ElementsAre(3));
  EXPECT_THAT(step.change, ElementsAre(Pair(1, 1)));
  ASSERT_THAT(step.work, SizeIs(2));
  EXPECT_EQ(scheduler.preempted(), 1);
  EXPECT_GE(scheduler.headroom_blocks(), 2) << "newcomers must not take what 3 waits for";

  // 2 ends: 3 comes back with room for all its tokens and recomputes them in chunks.
  scheduler.OnToken(1);
  scheduler.Remove(2);
  const auto back = scheduler.Next(/*free_blocks=*/2);
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
  const auto step = scheduler.Next(5);
  ASSERT_THAT(step.work, SizeIs(2));
  EXPECT_EQ(step.work[0].id, 1u);
  EXPECT_EQ(step.work[1].id, 2u);
  scheduler.Remove(1);
  scheduler.OnToken(2);
  EXPECT_EQ(scheduler.Next(6).work.back().id, 3u);
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
    std::map<SequenceId, Model> live;
    int32_t free = kPool;
    int started = 0;
    int finished = 0;
    int preemptions = 0;
    for (int round = 0; round < 20000 && finished < 60; ++round) {
      if (started < 60 && rng() % 3 == 0) {
        const auto prompt = static_cast<int32_t>(1 + rng() % 60);
        const auto blocks = static_cast<int32_t>(kv::BlocksFor(prompt)) + 1;
        if (blocks + scheduler.headroom_blocks() <= free || (live.empty() && blocks <= free)) {
          const SequenceId id = static_cast<SequenceId>(++started);
          free -= blocks;
          const auto extra = static_cast<int32_t>(1 + rng() % 70);
          live[id] = {prompt + 1, prompt + 1 + extra, prompt, blocks};
          scheduler.Add(id, prompt + 1, blocks);
        }
      }
      const auto step = scheduler.Next(free);
      for (SequenceId id : step.preempt) {
        free += live.at(id).blocks;
        live.at(id).blocks = 0;
        live.at(id).computed = 0;
        ++preemptions;
      }
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

// The plan's counts are those of real tables, which do with them what DecodeNode does.
TEST(DecodeSchedulerTest, CountsWhatSequencesWithWindowsHold) {
  const kv::KvGroups groups(
      std::vector<kv::Reach>{{}, {.window = 20}, {.chunk = 48}, {.window = 20}});
  ASSERT_EQ(groups.count(), 4);
  constexpr int32_t kRows = 24;
  const auto pool_blocks = static_cast<int32_t>(groups.MostBlocks(130, kRows));
  for (uint32_t seed = 1; seed <= 5; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    std::mt19937 rng(seed);
    kv::BlockPool pool(pool_blocks, groups);
    DecodeScheduler scheduler(
        {.max_batch = 4, .step_rows = kRows, .pool_blocks = pool_blocks, .groups = groups});
    struct Model {
      int32_t tokens = 0;
      int32_t target = 0;
      int32_t computed = 0;
      bool reserved = false;
      kv::BlockTable table;
    };
    std::map<SequenceId, Model> live;
    int started = 0;
    int finished = 0;
    int preemptions = 0;
    for (int round = 0; round < 20000 && finished < 60; ++round) {
      if (started < 60 && rng() % 3 == 0) {
        const auto prompt = static_cast<int32_t>(1 + rng() % 60);
        const int64_t end = kv::BlocksFor(prompt) + 1;
        const int64_t blocks = groups.BlocksHeld(prompt, end);
        if (blocks + scheduler.headroom_blocks() <= pool.free_blocks()) {
          const SequenceId id = static_cast<SequenceId>(++started);
          const auto extra = static_cast<int32_t>(1 + rng() % 70);
          Model& model = live[id];
          model.tokens = prompt + 1;
          model.target = prompt + 1 + extra;
          model.computed = prompt;
          model.table = kv::BlockTable::Acquire(pool, prompt, end * kv::kBlockTokens).value();
          ASSERT_EQ(model.table.held_blocks(), blocks);
          scheduler.Add(id, prompt + 1, static_cast<int32_t>(end));
        }
      }
      const int32_t free = pool.free_blocks();
      const auto step = scheduler.Next(free);
      for (SequenceId id : step.preempt) {
        live.at(id).table.Reset();
        live.at(id).computed = 0;
        ++preemptions;
      }
      std::map<SequenceId, int64_t> held_before;
      for (const auto& [id, model] : live) held_before[id] = model.table.held_blocks();
      for (const auto& work : step.work) {
        Model& model = live.at(work.id);
        ASSERT_EQ(work.start, model.computed);
        if (work.recompute && work.start == 0) {
          ASSERT_TRUE(model.table.Reserve(pool, groups.MostBlocks(model.tokens, kRows)).ok());
          model.reserved = true;
        }
        if (!work.recompute) model.reserved = false;
        model.table.ReleaseBefore(work.start);
        ASSERT_TRUE(model.table.Extend(pool, work.start + work.rows).ok()) << "round " << round;
        if (!model.reserved) model.table.ReleaseSpare();
        model.computed += work.rows;
      }
      std::map<SequenceId, int64_t> change;
      for (const auto& [id, blocks] : step.change) change[id] += blocks;
      for (const auto& [id, model] : live) {
        ASSERT_EQ(model.table.held_blocks() - held_before[id], change[id]) << "round " << round;
      }
      for (const auto& work : step.work) {
        Model& model = live.at(work.id);
        if (!work.samples) continue;
        ++model.tokens;
        scheduler.OnToken(work.id);
        if (model.tokens < model.target) continue;
        scheduler.Remove(work.id);
        live.erase(work.id);
        ++finished;
      }
    }
    EXPECT_EQ(finished, 60);
    EXPECT_GT(preemptions, 0) << "the pool is small enough that this test must preempt";
    EXPECT_EQ(pool.free_blocks(), pool_blocks);
  }
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
  int64_t held = groups.BlocksHeld(kTokens - 1, kTokens / kv::kBlockTokens);
  for (int i = 0; i < 100; ++i) {
    for (const auto& [id, change] : scheduler.Next(1 << 19).change) held += change;
    scheduler.OnToken(1);
    EXPECT_LE(held, kTokens / kv::kBlockTokens + i / kv::kBlockTokens + 1 + 9);
  }
}

}  // namespace
}  // namespace lynx::decode
