#include "common/concurrency/file_watch.h"

#include <chrono>
#include <filesystem>
#include <string>

#include "common/base/mutex.h"
#include "gtest/gtest.h"
#include "tests/support/temp_dir.h"

namespace lynx {
namespace {

constexpr absl::Duration kOften = absl::Milliseconds(5);

// Counts calls, and waits for them with a deadline that matters only when the test fails.
class Calls {
 public:
  void Add() {
    MutexLock lock(mu_);
    ++count_;
    changed_.NotifyAll();
  }
  bool Reach(int count) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    MutexLock lock(mu_);
    while (count_ < count) {
      if (!changed_.WaitUntil(mu_, deadline) && count_ < count) return false;
    }
    return true;
  }
  int count() {
    MutexLock lock(mu_);
    return count_;
  }

 private:
  Mutex mu_;
  CondVar changed_;
  int count_ = 0;
};

TEST(FileWatchTest, TellsOfWritesReplacementsComingAndGoing) {
  const testing::TempDir folder;
  const std::string file = folder.Write("f", "one");
  Calls calls;
  FileWatch watch({file, folder.path() / "second"}, kOften);
  watch.Start([&] { calls.Add(); });
  folder.Write("f", "longer");
  ASSERT_TRUE(calls.Reach(1));
  // Opening and writing are two changes, which one look may see as one or as two.
  int seen = calls.count();
  std::filesystem::rename(folder.Write("new", "longer"), file);
  ASSERT_TRUE(calls.Reach(seen + 1)) << "of the same size and content, but another file";
  seen = calls.count();
  std::filesystem::remove(file);
  ASSERT_TRUE(calls.Reach(seen + 1));
  seen = calls.count();
  folder.Write("second", "x");
  ASSERT_TRUE(calls.Reach(seen + 1));
}

TEST(FileWatchTest, SeesThroughALinkThatIsSwapped) {
  const testing::TempDir folder;
  folder.Write("a/f", "same");
  folder.Write("b/f", "same");
  std::filesystem::create_directory_symlink("a", folder.path() / "data");
  Calls calls;
  FileWatch watch({folder.path() / "data" / "f"}, kOften);
  watch.Start([&] { calls.Add(); });
  std::filesystem::create_directory_symlink("b", folder.path() / "data-new");
  std::filesystem::rename(folder.path() / "data-new", folder.path() / "data");
  EXPECT_TRUE(calls.Reach(1));
}

TEST(FileWatchTest, WhatChangesBeforeTheStartIsSeen) {
  const testing::TempDir folder;
  const std::string file = folder.Write("f", "one");
  Calls calls;
  FileWatch watch({file}, kOften);
  folder.Write("f", "longer");
  watch.Start([&] { calls.Add(); });
  EXPECT_TRUE(calls.Reach(1));
}

TEST(FileWatchTest, ANudgeCallsWithoutAChange) {
  const testing::TempDir folder;
  const std::string file = folder.Write("f", "one");
  Calls calls;
  FileWatch watch({file}, absl::Hours(1));
  watch.Start([&] { calls.Add(); });
  watch.Nudge();
  ASSERT_TRUE(calls.Reach(1));
  watch.Nudge();
  ASSERT_TRUE(calls.Reach(2));
}

TEST(FileWatchTest, AFolderStandsForTheFilesInIt) {
  const testing::TempDir folder;
  folder.Write("a", "one");
  Calls calls;
  FileWatch watch({folder.path()}, kOften);
  watch.Start([&] { calls.Add(); });
  folder.Write("a", "longer");
  ASSERT_TRUE(calls.Reach(1)) << "written in place";
  int seen = calls.count();
  folder.Write("b", "x");
  ASSERT_TRUE(calls.Reach(seen + 1));
  seen = calls.count();
  std::filesystem::remove(folder.path() / "a");
  ASSERT_TRUE(calls.Reach(seen + 1));
}

}  // namespace
}  // namespace lynx
