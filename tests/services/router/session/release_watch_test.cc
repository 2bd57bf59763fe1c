#include "services/router/session/release_watch.h"

#include "gtest/gtest.h"

namespace lynx::router {
namespace {

const absl::Time kNow = absl::FromUnixSeconds(1000);

absl::Time After(int ms) { return kNow + absl::Milliseconds(ms); }

TEST(ReleaseWatchTest, TheLastNodesWordCounts) {
  ReleaseWatch watch;
  watch.Begin(7, {1, 2}, kNow);
  EXPECT_EQ(watch.OnTerminal(7, 2, After(5)), std::nullopt);
  EXPECT_EQ(watch.OnTerminal(7, 2, After(6)), std::nullopt) << "twice";
  EXPECT_EQ(watch.OnTerminal(7, 3, After(6)), std::nullopt) << "not asked";
  EXPECT_EQ(watch.OnTerminal(8, 1, After(6)), std::nullopt);
  EXPECT_EQ(watch.OnTerminal(7, 1, After(20)), absl::Milliseconds(20));
  EXPECT_EQ(watch.OnTerminal(7, 1, After(21)), std::nullopt);
  EXPECT_EQ(watch.size(), 0u);
}

TEST(ReleaseWatchTest, ADeadNodeFreesNothingThatCouldBeMeasured) {
  ReleaseWatch watch;
  watch.Begin(7, {1, 2}, kNow);
  watch.Begin(8, {1}, kNow);
  watch.OnNodeGone(1);
  EXPECT_EQ(watch.size(), 1u);
  EXPECT_EQ(watch.OnTerminal(7, 2, After(30)), absl::Milliseconds(30));
}

TEST(ReleaseWatchTest, WordsThatNeverComeAreForgotten) {
  ReleaseWatch watch;
  for (uint64_t id = 1; id <= 10000; ++id) {
    watch.Begin(id, {1}, After(static_cast<int>(id)));
    ASSERT_LE(watch.size(), 4096u);
  }
  watch.Begin(20000, {1}, After(1000000));
  EXPECT_EQ(watch.size(), 1u);
}

}  // namespace
}  // namespace lynx::router
