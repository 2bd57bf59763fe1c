#include "common/kv/block_pool.h"

#include <memory>
#include <random>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/status_matchers.h"

namespace lynx::kv {
namespace {

using ::lynx::testing::StatusIs;
using ::testing::IsEmpty;
using ::testing::SizeIs;

// The refusals mean different things to a scheduler: fix the request, drop it, or wait.
TEST(BlockPoolTest, RefusalsTellTheCallerWhatToDoNext) {
  BlockPool pool(4);
  auto held = pool.Acquire(3);
  ASSERT_TRUE(held.ok());
  EXPECT_THAT(pool.Acquire(-1), StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(pool.Acquire(5), StatusIs(absl::StatusCode::kOutOfRange));
  EXPECT_THAT(pool.Acquire(2), StatusIs(absl::StatusCode::kResourceExhausted));
  EXPECT_EQ(pool.free_blocks(), 1) << "a refused Acquire must take nothing";
}

TEST(BlockPoolTest, MovedFromLeaseOwnsNothing) {
  auto pool = std::make_unique<BlockPool>(4);
  auto first = pool->Acquire(2);
  ASSERT_TRUE(first.ok());
  {
    BlockLease second = *std::move(first);
    EXPECT_THAT(first->blocks(), IsEmpty());  // NOLINT(bugprone-use-after-move): the point here.
    EXPECT_EQ(pool->free_blocks(), 2);
  }
  EXPECT_EQ(pool->free_blocks(), 4);
  pool.reset();  // The empty lease may outlive the pool.
}

// Random traffic against a model: no block is leased twice and none is lost.
TEST(BlockPoolTest, ConservesBlocksUnderRandomTraffic) {
  static constexpr uint32_t kSeeds[] = {1, 2, 3, 20240229};
  for (uint32_t seed : kSeeds) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    std::mt19937 rng(seed);
    BlockPool pool(64);
    std::vector<BlockLease> live;
    for (int step = 0; step < 2000; ++step) {
      if (live.empty() || rng() % 2 == 0) {
        auto lease = pool.Acquire(1 + rng() % 25);
        if (lease.ok()) live.push_back(*std::move(lease));
      } else {
        std::swap(live[rng() % live.size()], live.back());
        live.pop_back();
      }
      std::set<BlockId> leased;
      size_t total = 0;
      for (const BlockLease& lease : live) {
        leased.insert(lease.blocks().begin(), lease.blocks().end());
        total += lease.blocks().size();
      }
      ASSERT_THAT(leased, SizeIs(total)) << "a block is in two leases at step " << step;
      ASSERT_EQ(total + static_cast<size_t>(pool.free_blocks()), 64u) << "at step " << step;
    }
  }
}

// Meaningful mainly under TSan: threads write to the blocks they hold.
TEST(BlockPoolTest, ConcurrentHoldersNeverShareABlock) {
  BlockPool pool(32);
  std::vector<int> owner(32, -1);
  {
    std::vector<std::jthread> threads;
    for (int t = 0; t < 8; ++t) {
      threads.emplace_back([&, t] {
        for (int i = 0; i < 500; ++i) {
          auto lease = pool.Acquire(1 + i % 7);
          if (!lease.ok()) continue;
          for (BlockId id : lease->blocks()) owner[static_cast<size_t>(id)] = t;
          for (BlockId id : lease->blocks()) EXPECT_EQ(owner[static_cast<size_t>(id)], t);
        }
      });
    }
  }
  EXPECT_EQ(pool.free_blocks(), 32);
}

TEST(BlockPoolDeathTest, DyingUnderALiveLeaseAborts) {
  EXPECT_DEATH(
      {
        auto pool = std::make_unique<BlockPool>(1);
        auto lease = pool->Acquire(1);
        pool.reset();
      },
      "live lease");
}

}  // namespace
}  // namespace lynx::kv
