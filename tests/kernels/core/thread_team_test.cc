#include "kernels/core/thread_team.h"

#include <cstdint>
#include <vector>

#include "gtest/gtest.h"

namespace lynx::kernels {
namespace {

TEST(ThreadTeamTest, RunsEveryItemOnceAndShowsWhatItWrote) {
  for (int32_t threads : {1, 2, 5}) {
    ThreadTeam team(threads);
    EXPECT_EQ(team.threads(), threads);
    for (int round = 0; round < 2000; ++round) {
      const int64_t items = round % 37;
      std::vector<int> runs(static_cast<size_t>(items), 0);  // Not atomic: the call synchronises.
      team.ParallelFor(items, [&](int64_t i) { ++runs[static_cast<size_t>(i)]; });
      for (int count : runs) ASSERT_EQ(count, 1);
    }
  }
}

TEST(ThreadTeamTest, WakesWorkersThatFellAsleep) {
  ThreadTeam team(3);
  for (int round = 0; round < 5; ++round) {
    // Items that wait for each other finish only if two threads run them at the same time, so
    // workers must have woken, however long the pause before was.
    std::atomic<int> arrived{0};
    team.ParallelFor(2, [&](int64_t) {
      arrived.fetch_add(1);
      while (arrived.load() < 2) std::this_thread::yield();
    });
    EXPECT_EQ(arrived.load(), 2);
    // Long enough for every worker to give up spinning.
    volatile int64_t work = 0;
    for (int64_t i = 0; i < 3'000'000; ++i) work = work + i;
  }
}

TEST(ThreadTeamTest, StartsAndStopsWithoutWork) {
  for (int i = 0; i < 50; ++i) ThreadTeam team(4);
}

}  // namespace
}  // namespace lynx::kernels
