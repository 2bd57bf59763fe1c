#include "services/router/front/rate_limiter.h"

#include <string>

#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lynx::router {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;

const absl::Time kStart = absl::UnixEpoch() + absl::Hours(1);

TEST(TokenBucketTest, AMinutesWorthIsThereAtOnceAndComesBackEvenly) {
  TokenBucket bucket(60, kStart);
  EXPECT_EQ(bucket.Remaining(kStart), 60);
  for (int i = 0; i < 60; ++i) {
    EXPECT_EQ(bucket.WaitFor(1, kStart), absl::ZeroDuration()) << i;
    bucket.Take(1, kStart);
  }
  EXPECT_EQ(bucket.Remaining(kStart), 0);
  EXPECT_EQ(bucket.WaitFor(1, kStart), absl::Seconds(1));
  EXPECT_EQ(bucket.WaitFor(1, kStart + absl::Milliseconds(400)), absl::Milliseconds(600));
  EXPECT_EQ(bucket.WaitFor(1, kStart + absl::Seconds(1)), absl::ZeroDuration());
  EXPECT_EQ(bucket.UntilFull(kStart + absl::Seconds(45)), absl::Seconds(15));
  EXPECT_EQ(bucket.Remaining(kStart + absl::Hours(2)), 60) << "it holds no more than a minute's";
}

TEST(TokenBucketTest, DebtMustComeBackFirst) {
  TokenBucket bucket(600, kStart);
  bucket.Take(1200, kStart);
  EXPECT_EQ(bucket.Remaining(kStart), 0);
  EXPECT_EQ(bucket.WaitFor(1, kStart + absl::Minutes(1)), absl::Milliseconds(100));
  EXPECT_EQ(bucket.Remaining(kStart + absl::Minutes(2)), 600);
}

TEST(TokenBucketTest, MoreThanAMinutesWorthNeedsAFullBucketOnly) {
  TokenBucket bucket(100, kStart);
  EXPECT_EQ(bucket.WaitFor(1000, kStart), absl::ZeroDuration());
  bucket.Take(10, kStart);
  EXPECT_EQ(bucket.WaitFor(1000, kStart), absl::Seconds(6));
}

TEST(TokenBucketTest, ANewRateKeepsWhatIsThere) {
  TokenBucket bucket(100, kStart);
  bucket.Take(90, kStart);
  bucket.SetRate(1000, kStart);
  EXPECT_EQ(bucket.Remaining(kStart), 10);
  bucket.SetRate(5, kStart);
  EXPECT_EQ(bucket.Remaining(kStart), 5);
}

TEST(KeyUsageTest, RequestsAndTokensAreLimitedApart) {
  KeyUsage usage({.requests_per_minute = 2, .tokens_per_minute = 100}, kStart);
  EXPECT_TRUE(usage.TakeRequest(kStart).allowed());
  EXPECT_TRUE(usage.CheckRequest(kStart).allowed());
  EXPECT_TRUE(usage.TakeRequest(kStart).allowed());
  const KeyUsage::Decision third = usage.TakeRequest(kStart);
  EXPECT_FALSE(third.allowed());
  EXPECT_EQ(third.retry_after, absl::Seconds(30));
  EXPECT_EQ(third.kind, LimitKind::kRequests);
  EXPECT_EQ(third.per_minute, 2);
  EXPECT_FALSE(usage.CheckRequest(kStart).allowed());

  EXPECT_TRUE(usage.TakePrompt(90, kStart).allowed());
  const KeyUsage::Decision more = usage.TakePrompt(40, kStart);
  EXPECT_EQ(more.kind, LimitKind::kTokens);
  EXPECT_EQ(more.retry_after, absl::Seconds(18));
  EXPECT_TRUE(usage.TakePrompt(10, kStart).allowed()) << "the refused prompt took nothing";
  usage.ChargeOutput(50, kStart);
  EXPECT_EQ(usage.TakePrompt(10, kStart).retry_after, absl::Seconds(36));
}

TEST(KeyUsageTest, HeadersSayWhatIsLeftOfTheLimitsThereAre) {
  EXPECT_THAT(KeyUsage({}, kStart).Headers(kStart), IsEmpty());
  KeyUsage usage({.tokens_per_minute = 120}, kStart);
  EXPECT_TRUE(usage.TakePrompt(21, kStart).allowed());
  EXPECT_THAT(usage.Headers(kStart), ElementsAre(Pair("X-RateLimit-Limit-Tokens", "120"),
                                                 Pair("X-RateLimit-Remaining-Tokens", "99"),
                                                 Pair("X-RateLimit-Reset-Tokens", "10.5s")));
}

TEST(RateLimiterTest, NewLimitsForgiveNothing) {
  RateLimiter limiter;
  limiter.SetLimits({{"ann", {.requests_per_minute = 1}}, {"bob", {}}}, kStart);
  EXPECT_EQ(limiter.Find("eve"), nullptr);
  EXPECT_EQ(limiter.Find(""), nullptr);
  const auto held = limiter.Find("ann");
  EXPECT_TRUE(held->TakeRequest(kStart).allowed());
  limiter.SetLimits({{"ann", {.requests_per_minute = 10}}}, kStart);
  EXPECT_FALSE(limiter.Find("ann")->TakeRequest(kStart).allowed());
  EXPECT_EQ(held, limiter.Find("ann")) << "requests under way count on";
  EXPECT_EQ(limiter.Find("bob"), nullptr);
  limiter.SetLimits({{"ann", {}}}, kStart);
  EXPECT_TRUE(limiter.Find("ann")->TakeRequest(kStart).allowed());
}

}  // namespace
}  // namespace lynx::router
