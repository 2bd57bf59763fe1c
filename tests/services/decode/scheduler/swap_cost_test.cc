#include "services/decode/scheduler/swap_cost.h"

#include "gtest/gtest.h"

namespace lynx::decode {
namespace {

constexpr StepTime kStepTime = {.per_row = absl::Milliseconds(1), .max_rows = 8};

TEST(SwapCostTest, TheCheaperWayIsTakenOnceBothAreKnown) {
  const SwapCost cost = {.bytes_per_second = 1e6};
  EXPECT_TRUE(cost.CopyIsCheaper(kStepTime, /*bytes=*/2000, /*tokens=*/20));
  EXPECT_FALSE(cost.CopyIsCheaper(kStepTime, /*bytes=*/2000, /*tokens=*/3));
  EXPECT_FALSE(cost.CopyIsCheaper(StepTime(), /*bytes=*/2000, /*tokens=*/20));
  EXPECT_TRUE(SwapCost().CopyIsCheaper(kStepTime, 2000, 3)) << "one copy tells what copies cost";
}

TEST(SwapCostTest, FollowsWhatCopiesTake) {
  SwapCost cost;
  cost.OnCopy(1000, absl::ZeroDuration());
  EXPECT_EQ(cost.bytes_per_second, 0);
  cost.OnCopy(1000, absl::Milliseconds(1));
  EXPECT_DOUBLE_EQ(cost.bytes_per_second, 1e6);
  for (int i = 0; i < 50; ++i) cost.OnCopy(3000, absl::Milliseconds(1));
  EXPECT_NEAR(cost.bytes_per_second, 3e6, 1e3);
}

}  // namespace
}  // namespace lynx::decode
