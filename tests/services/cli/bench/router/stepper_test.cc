#include "services/cli/bench/router/stepper.h"

#include <utility>
#include <vector>

#include "common/base/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lynx::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::Pair;

TEST(StepperTest, GroupsStepInTurnAndKeepTheTime) {
  ManualClock clock;
  SimEventLoop loop(clock);
  const absl::Time began = clock.Now();
  std::vector<std::pair<int32_t, int64_t>> steps;  // Group and milliseconds.
  Stepper stepper(loop, 2, absl::Milliseconds(100), [&](int32_t group) {
    steps.emplace_back(group, absl::ToInt64Milliseconds(clock.Now() - began));
    if (steps.size() == 2) clock.Advance(absl::Milliseconds(70));  // A slow one.
  });
  loop.Advance(absl::Milliseconds(10));
  EXPECT_THAT(steps, ElementsAre()) << "not started";
  stepper.Start();
  loop.Advance(absl::Milliseconds(240));
  EXPECT_THAT(steps,
              ElementsAre(Pair(0, 10), Pair(1, 60), Pair(0, 130), Pair(1, 160), Pair(0, 210)));
  stepper.Stop();
  loop.Advance(absl::Seconds(1));
  EXPECT_EQ(steps.size(), 5u);
}

}  // namespace
}  // namespace lynx::cli
