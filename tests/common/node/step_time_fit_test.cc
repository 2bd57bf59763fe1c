#include "common/node/step_time_fit.h"

#include "gtest/gtest.h"

namespace lynx::node {
namespace {

double Ms(absl::Duration duration) { return absl::ToDoubleMilliseconds(duration); }

TEST(StepTimeFitTest, KnowsNothingAtFirst) {
  EXPECT_FALSE(StepTimeFit(64).Get().known());
  EXPECT_EQ(StepTimeFit(64).Get().Steps(1000), absl::ZeroDuration());
}

TEST(StepTimeFitTest, FindsTheLineThatStepsLieOn) {
  StepTimeFit fit(64);
  for (int rows : {1, 64, 3, 17, 40, 9}) {
    fit.Add(rows, absl::Milliseconds(5) + absl::Microseconds(250) * rows);
  }
  EXPECT_NEAR(Ms(fit.Get().base), 5, 1e-6);
  EXPECT_NEAR(Ms(fit.Get().per_row), 0.25, 1e-6);
  EXPECT_NEAR(Ms(fit.Get().Step(32)), 13, 1e-5);
  // 100 rows: a step of 64 and one of 36.
  EXPECT_NEAR(Ms(fit.Get().Steps(100)), 2 * 5 + 25, 1e-5);
}

TEST(StepTimeFitTest, StepsThatAreAllAlikeGiveAShareOfThem) {
  StepTimeFit fit(64);
  for (int i = 0; i < 50; ++i) fit.Add(16, absl::Milliseconds(8));
  EXPECT_NEAR(Ms(fit.Get().Step(16)), 8, 1e-6);
  EXPECT_NEAR(Ms(fit.Get().Step(8)), 4, 1e-6);
}

TEST(StepTimeFitTest, NeitherPartIsNegative) {
  StepTimeFit falling(64);
  falling.Add(1, absl::Milliseconds(9));
  falling.Add(10, absl::Milliseconds(1));
  EXPECT_EQ(falling.Get().per_row, absl::ZeroDuration());
  EXPECT_NEAR(Ms(falling.Get().base), 5, 0.1);
  StepTimeFit steep(64);
  steep.Add(10, absl::Milliseconds(1));
  steep.Add(20, absl::Milliseconds(9));
  EXPECT_EQ(steep.Get().base, absl::ZeroDuration());
  EXPECT_GT(steep.Get().per_row, absl::ZeroDuration());
}

TEST(StepTimeFitTest, FollowsAMachineThatSlowsDown) {
  StepTimeFit fit(64, 20);
  for (int i = 0; i < 100; ++i) fit.Add(1 + i % 8, absl::Milliseconds(1 + i % 8));
  for (int i = 0; i < 100; ++i) fit.Add(1 + i % 8, 2 * absl::Milliseconds(1 + i % 8));
  EXPECT_NEAR(Ms(fit.Get().Step(4)), 8, 0.1);
}

}  // namespace
}  // namespace lynx::node
