#include "common/kv/block_table.h"

#include <algorithm>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/status_matchers.h"

namespace lynx::kv {
namespace {

using ::lynx::testing::IsOk;
using ::lynx::testing::StatusIs;
using ::testing::ElementsAre;

KvGroups Mixed() { return KvGroups(std::vector<Reach>{{}, {.window = 20}, {.chunk = 48}}); }

// Every entry that rows from `position` on need is a block of its own, every other one is none.
void ExpectHolds(const BlockTable& table, const BlockPool& pool, int32_t position) {
  std::set<BlockId> seen;
  const KvGroups& groups = pool.groups();
  for (int32_t g = 0; g < groups.count(); ++g) {
    const auto entries = table.group(g);
    ASSERT_EQ(static_cast<int32_t>(entries.size()), table.end_block());
    for (int32_t i = 0; i < table.end_block(); ++i) {
      const BlockId block = entries[static_cast<size_t>(i)];
      if (i < groups.FirstBlock(g, position)) {
        EXPECT_EQ(block, kNoBlock) << "group " << g << " block " << i;
      } else {
        EXPECT_TRUE(block >= 0 && block < pool.capacity_blocks() && seen.insert(block).second)
            << "group " << g << " block " << i;
      }
    }
  }
}

TEST(BlockTableTest, AtEveryPositionItHoldsWhatItsRowNeedsAndNoMore) {
  BlockPool pool(64, Mixed());
  {
    BlockTable table;
    for (int32_t position = 0; position < 200; ++position) {
      table.ReleaseBefore(position);
      ASSERT_THAT(table.Extend(pool, position + 1), IsOk());
      table.ReleaseSpare();
      ExpectHolds(table, pool, position);
      const int64_t want = pool.groups().BlocksHeld(position, BlocksFor(position + 1));
      EXPECT_EQ(table.held_blocks(), want) << position;
      EXPECT_EQ(pool.free_blocks(), 64 - want) << position;
    }
  }
  EXPECT_EQ(pool.free_blocks(), 64);
}

TEST(BlockTableTest, AHandOffHoldsTheLastWindowsOnly) {
  BlockPool pool(64, Mixed());
  auto table = BlockTable::Acquire(pool, 100, 112);
  ASSERT_THAT(table, IsOk());
  EXPECT_EQ(table->end_block(), 7);
  EXPECT_EQ(table->held_blocks(), 7 + 2 + 1) << "from tokens 0, 81 and 96 on";
  ExpectHolds(*table, pool, 100);
  table->ReleaseBefore(144);
  table->ReleaseSpare();
  EXPECT_EQ(table->held_blocks(), 7) << "the next chunk has not begun";
  ASSERT_THAT(table->Extend(pool, 145), IsOk());
  EXPECT_EQ(table->held_blocks(), 10 + 3 + 1);
  ExpectHolds(*table, pool, 144);
}

TEST(BlockTableTest, WhatIsReservedSufficesForAnySteps) {
  for (uint32_t seed = 1; seed <= 30; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    std::mt19937 rng(seed);
    const auto tokens = static_cast<int32_t>(1 + rng() % 300);
    const auto step = static_cast<int32_t>(1 + rng() % 60);
    const int64_t most = Mixed().MostBlocks(tokens, step);
    BlockPool pool(static_cast<int32_t>(most), Mixed());
    BlockTable table;
    ASSERT_THAT(table.Reserve(pool, most), IsOk());
    EXPECT_EQ(pool.free_blocks(), 0);
    for (int32_t start = 0; start < tokens;) {
      const auto rows = std::min(tokens - start, static_cast<int32_t>(1 + rng() % step));
      table.ReleaseBefore(start);
      ASSERT_THAT(table.Extend(pool, start + rows), IsOk()) << start;
      ExpectHolds(table, pool, start);
      start += rows;
    }
    EXPECT_EQ(pool.free_blocks(), 0) << "spare blocks stay until they are given back";
    table.Reset();
    EXPECT_EQ(pool.free_blocks(), most);
  }
}

TEST(BlockTableTest, AFailureChangesNothing) {
  BlockPool pool(6, Mixed());
  BlockTable table;
  ASSERT_THAT(table.Extend(pool, 16), IsOk());
  EXPECT_EQ(table.held_blocks(), 3);
  auto other = pool.Acquire(1);
  EXPECT_THAT(table.Extend(pool, 32), StatusIs(absl::StatusCode::kResourceExhausted));
  EXPECT_THAT(table.Extend(pool, 48), StatusIs(absl::StatusCode::kOutOfRange));
  EXPECT_EQ(table.held_blocks(), 3);
  EXPECT_EQ(table.end_block(), 1);
  EXPECT_EQ(pool.free_blocks(), 2);
  other->Reset();
  EXPECT_THAT(table.Extend(pool, 32), IsOk());
}

TEST(BlockTableTest, MovesItsRights) {
  BlockPool pool(8, Mixed());
  auto table = BlockTable::Acquire(pool, 0, 16);
  ASSERT_THAT(table, IsOk());
  BlockTable moved = *std::move(table);
  EXPECT_EQ(pool.free_blocks(), 5);
  moved = BlockTable();
  EXPECT_EQ(pool.free_blocks(), 8);
  EXPECT_TRUE(moved.empty());
}

TEST(BlockTableTest, WithoutWindowsItIsTheBlocksInTokenOrder) {
  BlockPool pool(4);
  BlockTable table;
  ASSERT_THAT(table.Extend(pool, 17), IsOk());
  table.ReleaseBefore(16);
  ASSERT_THAT(table.Extend(pool, 33), IsOk());
  EXPECT_THAT(table.blocks(), ElementsAre(0, 1, 2));
  EXPECT_EQ(table.held_blocks(), 3);
}

}  // namespace
}  // namespace lynx::kv
