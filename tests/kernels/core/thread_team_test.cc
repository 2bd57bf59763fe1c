#include "kernels/core/thread_team.h"

#include <dirent.h>
#include <pthread.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <fstream>
#include <map>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/core/cpu_limit.h"
#include "tests/support/status_matchers.h"

namespace lynx::kernels {
namespace {

using ::lynx::testing::IsOk;
using ::lynx::testing::StatusIs;
using ::testing::HasSubstr;

// Waits for what another thread does; false when it is not done in a time that only a broken team
// takes.
template <typename Condition>
bool Await(const Condition& condition) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (!condition()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::yield();
  }
  return true;
}

// New threads get stacks that no address space holds.
TEST(ThreadTeamTest, SaysSoWhereTheSystemGivesNoThreads) {
  pthread_attr_t before, huge;
  ASSERT_EQ(pthread_getattr_default_np(&before), 0);
  ASSERT_EQ(pthread_attr_init(&huge), 0);
  ASSERT_EQ(pthread_attr_setstacksize(&huge, size_t{1} << 47), 0);
  ASSERT_EQ(pthread_setattr_default_np(&huge), 0);
  const auto team = ThreadTeam::Create(3);
  const auto alone = ThreadTeam::Create(1);
  ASSERT_EQ(pthread_setattr_default_np(&before), 0);
  EXPECT_THAT(team, StatusIs(absl::StatusCode::kResourceExhausted,
                             HasSubstr("of 3 compute threads the system gives 1")));
  EXPECT_THAT(alone, IsOk());
}

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
      EXPECT_TRUE(Await([&] { return arrived.load() == 2; }));
    });
    EXPECT_EQ(arrived.load(), 2);
    // Long enough for every worker to give up spinning.
    volatile int64_t work = 0;
    for (int64_t i = 0; i < 3'000'000; ++i) work = work + i;
  }
}

// Of as many items as threads, each waiting for all the others, every thread runs one: its own.
TEST(ThreadTeamTest, AThreadMeetsTheItemsItMetBefore) {
  constexpr int kThreads = 4;
  ThreadTeam team(kThreads);
  std::vector<std::thread::id> first(kThreads);
  for (int round = 0; round < 20; ++round) {
    std::vector<std::thread::id> ran(kThreads);
    std::atomic<int> arrived{0};
    team.ParallelFor(kThreads, [&](int64_t item) {
      ran[static_cast<size_t>(item)] = std::this_thread::get_id();
      arrived.fetch_add(1);
      EXPECT_TRUE(Await([&] { return arrived.load() == kThreads; }));
    });
    if (round == 0) first = ran;
    EXPECT_EQ(ran, first);
    EXPECT_EQ(ran[0], std::this_thread::get_id());
  }
}

// The thread that is stuck holds one item; the rest of its range goes to the others.
TEST(ThreadTeamTest, OneSlowThreadDelaysNobody) {
  constexpr int64_t kItems = 1000;
  ThreadTeam team(3);
  for (int64_t stuck : {int64_t{0}, kItems / 2, kItems - 1}) {
    std::atomic<int64_t> others{0};
    team.ParallelFor(kItems, [&](int64_t item) {
      if (item == stuck) {
        EXPECT_TRUE(Await([&] { return others.load() == kItems - 1; })) << others.load();
      } else {
        others.fetch_add(1);
      }
    });
    EXPECT_EQ(others.load(), kItems - 1);
  }
}

// State letters of this process's threads other than the caller, as in /proc/<pid>/stat.
std::multiset<char> StatesOfOtherThreads() {
  std::multiset<char> states;
  DIR* tasks = opendir("/proc/self/task");
  while (const dirent* task = readdir(tasks)) {
    const std::string id = task->d_name;
    if (id[0] == '.' || id == std::to_string(syscall(SYS_gettid))) continue;
    std::ifstream stat("/proc/self/task/" + id + "/stat");
    std::string line;
    std::getline(stat, line);
    const size_t end = line.rfind(')');
    if (end != std::string::npos) states.insert(line[end + 2]);
  }
  closedir(tasks);
  return states;
}

TEST(ThreadTeamTest, IdleWorkersSleep) {
  ThreadTeam team(4);
  team.ParallelFor(100, [](int64_t) {});
  EXPECT_TRUE(Await([] { return StatesOfOtherThreads().count('S') >= 3; }));
}

TEST(ThreadTeamTest, ThreadsArePinnedToTheirCpus) {
  const std::vector<int32_t> allowed = AllowedCpus();
  const std::vector<int32_t> cpus = {allowed.back(), allowed.front()};
  // On a thread of its own, which may stay pinned.
  std::thread([&] {
    constexpr int kThreads = 3;
    ThreadTeam team(kThreads, cpus);
    std::atomic<int> arrived{0};
    team.ParallelFor(kThreads, [&](int64_t item) {
      cpu_set_t set;
      CPU_ZERO(&set);
      EXPECT_EQ(pthread_getaffinity_np(pthread_self(), sizeof(set), &set), 0);
      EXPECT_EQ(CPU_COUNT(&set), 1);
      EXPECT_TRUE(CPU_ISSET(cpus[static_cast<size_t>(item) % 2], &set)) << item;
      arrived.fetch_add(1);
      EXPECT_TRUE(Await([&] { return arrived.load() == kThreads; }));
    });
  }).join();
  EXPECT_EQ(AllowedCpus(), allowed);
}

TEST(ThreadTeamTest, ACpuThatIsNotThereLeavesItsThreadFree) {
  ThreadTeam team(2, {1 << 20});
  std::atomic<int> ran{0};
  team.ParallelFor(10, [&](int64_t) { ran.fetch_add(1); });
  EXPECT_EQ(ran.load(), 10);
}

TEST(ThreadTeamTest, StartsAndStopsWithoutWork) {
  for (int i = 0; i < 50; ++i) ThreadTeam team(4);
}

}  // namespace
}  // namespace lynx::kernels
