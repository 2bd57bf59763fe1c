#include "services/router/session/retry_budget.h"

#include "common/base/clock.h"
#include "gtest/gtest.h"

namespace lynx::router {
namespace {

TEST(RetryBudgetTest, ABurstGoesAtOnceAndTheRestOneByOne) {
  ManualClock clock;
  RetryBudget budget({.per_request = 0, .per_second = 10, .burst = 3}, clock.Now());
  for (int i = 0; i < 3; ++i) EXPECT_EQ(budget.Take(clock.Now()), clock.Now());
  for (int i = 1; i <= 5; ++i) {
    EXPECT_EQ(budget.Take(clock.Now()), clock.Now() + absl::Milliseconds(100) * i);
  }
  clock.Advance(absl::Milliseconds(500));
  EXPECT_EQ(budget.Take(clock.Now()), clock.Now() + absl::Milliseconds(100))
      << "those who wait come first";
}

TEST(RetryBudgetTest, RequestsBringPartsOfPermits) {
  ManualClock clock;
  RetryBudget budget({.per_request = 0.25, .per_second = 1e-9, .burst = 1}, clock.Now());
  EXPECT_EQ(budget.Take(clock.Now()), clock.Now());
  for (int i = 0; i < 4; ++i) budget.OnRequest(clock.Now());
  EXPECT_EQ(budget.Take(clock.Now()), clock.Now());
  for (int i = 0; i < 3; ++i) budget.OnRequest(clock.Now());
  EXPECT_GT(budget.Take(clock.Now()), clock.Now());
}

TEST(RetryBudgetTest, NeverHoldsMoreThanABurst) {
  ManualClock clock;
  RetryBudget budget({.per_request = 1, .per_second = 10, .burst = 2}, clock.Now());
  clock.Advance(absl::Hours(1));
  for (int i = 0; i < 100; ++i) budget.OnRequest(clock.Now());
  EXPECT_EQ(budget.Take(clock.Now()), clock.Now());
  EXPECT_EQ(budget.Take(clock.Now()), clock.Now());
  EXPECT_GT(budget.Take(clock.Now()), clock.Now());
}

TEST(RetryJitterTest, IsSpreadOverTwiceAsMuchEachTime) {
  for (int retry = 1; retry <= 40; ++retry) {
    const absl::Duration most = std::min(
        absl::Milliseconds(50) * (int64_t{1} << std::min(retry - 1, 20)), absl::Seconds(2));
    EXPECT_EQ(RetryJitter(retry, 0), absl::ZeroDuration());
    EXPECT_LE(RetryJitter(retry, UINT64_MAX), most);
    EXPECT_GT(RetryJitter(retry, UINT64_MAX), most * 0.999);
    EXPECT_LT(RetryJitter(retry, uint64_t{1} << 63) - most / 2, absl::Nanoseconds(10));
  }
}

}  // namespace
}  // namespace lynx::router
