#include "common/node/load_progress.h"

#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lynx::node {
namespace {

using ::testing::IsEmpty;
using ::testing::SizeIs;

TEST(LoadProgressTest, ReportsAtIntervalsWithTheRateSinceTheLast) {
  ManualClock clock;
  std::vector<LoadedPart> reports;
  LoadProgress progress(clock, absl::Seconds(5),
                        [&](const LoadedPart& part) { reports.push_back(part); });
  for (int second = 1; second <= 4; ++second) {
    clock.Advance(absl::Seconds(1));
    progress.Update(second * 100, 2000);
  }
  EXPECT_THAT(reports, IsEmpty());
  clock.Advance(absl::Seconds(1));
  progress.Update(500, 2000);
  progress.Update(501, 2000);  // At once.
  ASSERT_THAT(reports, SizeIs(1));
  EXPECT_EQ(reports[0].done_bytes, 500);
  EXPECT_EQ(reports[0].total_bytes, 2000);
  EXPECT_DOUBLE_EQ(reports[0].percent, 25);
  EXPECT_DOUBLE_EQ(reports[0].bytes_per_second, 100);
  clock.Advance(absl::Seconds(10));  // One long step.
  progress.Update(2000, 2000);
  ASSERT_THAT(reports, SizeIs(2));
  EXPECT_DOUBLE_EQ(reports[1].percent, 100);
  EXPECT_DOUBLE_EQ(reports[1].bytes_per_second, 150);
}

TEST(LoadProgressTest, ALoadOfNothingIsWhole) {
  ManualClock clock;
  double percent = 0;
  LoadProgress progress(clock, absl::Seconds(1),
                        [&](const LoadedPart& part) { percent = part.percent; });
  clock.Advance(absl::Seconds(1));
  progress.Update(0, 0);
  EXPECT_EQ(percent, 100);
}

}  // namespace
}  // namespace lynx::node
