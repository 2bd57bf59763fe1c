#include "common/concurrency/event_loop.h"

#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lynx {
namespace {

using ::testing::ElementsAre;

TEST(SimEventLoopTest, RunsInTimeOrderAndByCreationWithinAnInstant) {
  ManualClock clock;
  SimEventLoop loop(clock);
  std::vector<std::string> ran;
  loop.RunAfter(absl::Seconds(2), [&] { ran.push_back("late"); });
  loop.RunAfter(absl::Seconds(1), [&] {
    ran.push_back("early");
    loop.Post([&] { ran.push_back("posted by early"); });
  });
  loop.RunAfter(absl::Seconds(1), [&] { ran.push_back("early twin"); });
  loop.Advance(absl::Milliseconds(999));
  EXPECT_THAT(ran, ElementsAre());
  loop.Advance(absl::Seconds(2));
  EXPECT_THAT(ran, ElementsAre("early", "early twin", "posted by early", "late"));
}

TEST(SimEventLoopTest, ADelayFinerThanTheClockEnds) {
  ManualClock clock;
  SimEventLoop loop(clock);
  bool ran = false;
  loop.RunAfter(absl::Nanoseconds(1) / 4, [&] { ran = true; });
  loop.Advance(absl::Nanoseconds(1));
  EXPECT_TRUE(ran);
}

TEST(SimEventLoopTest, ATaskCanCancelATimerDueAtTheSameInstant) {
  ManualClock clock;
  SimEventLoop loop(clock);
  bool ran = false;
  TimerId victim = 0;
  loop.RunAfter(absl::Seconds(1), [&] { loop.CancelTimer(victim); });
  victim = loop.RunAfter(absl::Seconds(1), [&] { ran = true; });
  loop.Advance(absl::Seconds(5));
  EXPECT_FALSE(ran);
}

TEST(ThreadEventLoopTest, RunsTasksOfManyThreadsEachInItsOrder) {
  ThreadEventLoop loop;
  constexpr int kThreads = 4;
  constexpr int kTasks = 500;
  std::vector<std::vector<int>> seen(kThreads);  // Touched by the loop's thread only.
  {
    std::vector<std::jthread> posters;
    for (size_t t = 0; t < kThreads; ++t) {
      posters.emplace_back([&, t] {
        for (int i = 0; i < kTasks; ++i) loop.Post([&seen, t, i] { seen[t].push_back(i); });
      });
    }
  }
  loop.RunAndWait([&] {
    for (const auto& one : seen) {
      ASSERT_EQ(one.size(), size_t{kTasks});
      EXPECT_TRUE(std::is_sorted(one.begin(), one.end()));
    }
  });
}

TEST(ThreadEventLoopTest, ATaskCanCancelATimerThatIsAlreadyDue) {
  ThreadEventLoop loop;
  std::atomic<bool> ran = false;
  loop.RunAndWait([&] {
    const TimerId victim = loop.RunAfter(absl::ZeroDuration(), [&] { ran = true; });
    loop.CancelTimer(victim);
  });
  loop.RunAndWait([] {});
  loop.RunAndWait([] {});
  EXPECT_FALSE(ran);
}

TEST(ThreadEventLoopTest, StopDropsWhatHasNotStartedAndFreesWhatItHeld) {
  auto held = std::make_shared<int>(1);
  {
    ThreadEventLoop loop;
    loop.RunAfter(absl::Hours(1), [held] {});
    loop.Stop();
    loop.Post([held] { FAIL() << "ran after Stop"; });
  }
  EXPECT_EQ(held.use_count(), 1);
}

}  // namespace
}  // namespace lynx
