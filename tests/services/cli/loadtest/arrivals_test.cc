#include "services/cli/loadtest/arrivals.h"

#include <cmath>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "services/cli/loadtest/lengths.h"
#include "tests/support/status_matchers.h"

namespace lynx::loadtest {
namespace {

using ::lynx::testing::IsOk;
using ::lynx::testing::StatusIs;
using ::testing::HasSubstr;

constexpr int kDraws = 200'000;
constexpr uint64_t kSeed = 20260101;

struct Moments {
  double mean = 0;
  double variation = 0;  // Standard deviation over mean.
};

template <typename Fn>
Moments Measure(Fn draw) {
  double sum = 0;
  double squares = 0;
  for (int i = 0; i < kDraws; ++i) {
    const double x = draw();
    sum += x;
    squares += x * x;
  }
  const double mean = sum / kDraws;
  return {.mean = mean, .variation = std::sqrt(squares / kDraws - mean * mean) / mean};
}

Moments Gaps(ArrivalProcess process, double rate, double burstiness) {
  Arrivals arrivals(process, rate, burstiness, kSeed);
  absl::Duration before;
  return Measure([&] {
    const absl::Duration at = arrivals.Next();
    EXPECT_GE(at, before);
    const double gap = absl::ToDoubleSeconds(at - before);
    before = at;
    return gap;
  });
}

TEST(ArrivalsTest, PoissonGapsAreExponential) {
  const Moments gaps = Gaps(ArrivalProcess::kPoisson, 4, 1);
  EXPECT_NEAR(gaps.mean, 0.25, 0.25 * 0.01);
  EXPECT_NEAR(gaps.variation, 1, 0.01);
}

TEST(ArrivalsTest, PoissonCountsHaveEqualMeanAndVariance) {
  Arrivals arrivals(ArrivalProcess::kPoisson, 10, 1, kSeed);
  std::vector<int> counts(5000);
  for (;;) {
    const auto second = static_cast<size_t>(absl::ToDoubleSeconds(arrivals.Next()));
    if (second >= counts.size()) break;
    ++counts[second];
  }
  double sum = 0;
  double squares = 0;
  for (const int count : counts) {
    sum += count;
    squares += static_cast<double>(count) * count;
  }
  const auto n = static_cast<double>(counts.size());
  const double mean = sum / n;
  EXPECT_NEAR(mean, 10, 0.15);
  EXPECT_NEAR((squares / n - mean * mean) / mean, 1, 0.06);
}

// The coefficient of variation is 1 / sqrt(shape), the mean is the rate's whatever the shape.
TEST(ArrivalsTest, GammaGapsFollowTheBurstiness) {
  for (const double burstiness : {0.1, 0.5, 1.0, 4.0, 25.0}) {
    SCOPED_TRACE(burstiness);
    const Moments gaps = Gaps(ArrivalProcess::kGamma, 2, burstiness);
    EXPECT_NEAR(gaps.mean, 0.5, 0.5 * 0.03);
    EXPECT_NEAR(gaps.variation * std::sqrt(burstiness), 1, 0.03);
  }
}

TEST(ArrivalsTest, FixedGapsAreEqual) {
  Arrivals arrivals(ArrivalProcess::kFixed, 8, 1, kSeed);
  for (int i = 1; i <= 80; ++i) EXPECT_EQ(arrivals.Next(), absl::Seconds(i / 8.0));
}

TEST(ArrivalsTest, TheSeedDecidesAlone) {
  Arrivals a(ArrivalProcess::kGamma, 3, 0.5, 7);
  Arrivals b(ArrivalProcess::kGamma, 3, 0.5, 7);
  Arrivals c(ArrivalProcess::kGamma, 3, 0.5, 8);
  EXPECT_EQ(a.Next(), b.Next());
  EXPECT_NE(a.Next(), c.Next());
}

TEST(LengthsTest, SamplesFollowTheirDistribution) {
  struct Case {
    const char* text;
    double mean;
    double variation;
  };
  // Of a lognormal: mean = median * exp(s^2 / 2), variation = sqrt(exp(s^2) - 1).
  for (const Case& c :
       {Case{"512", 512, 0}, Case{"fixed:7", 7, 0},
        Case{"uniform:100,900", 500, std::sqrt((801.0 * 801 - 1) / 12) / 500},
        Case{"normal:1000,100", 1000, 0.1},
        Case{"lognormal:200,0.5", 200 * std::exp(0.125), std::sqrt(std::exp(0.25) - 1)},
        Case{"exponential:300", 300, 1}}) {
    SCOPED_TRACE(c.text);
    const auto lengths = Lengths::Parse(c.text);
    ASSERT_THAT(lengths, IsOk());
    Random random(kSeed);
    const Moments moments = Measure([&] { return static_cast<double>(lengths->Sample(random)); });
    EXPECT_NEAR(moments.mean, c.mean, 0.01 * c.mean);
    EXPECT_NEAR(moments.variation, c.variation, 0.02);
  }
}

TEST(LengthsTest, NoSampleIsUnderOne) {
  const auto lengths = Lengths::Parse("normal:2,50");
  ASSERT_THAT(lengths, IsOk());
  Random random(kSeed);
  for (int i = 0; i < 1000; ++i) EXPECT_GE(lengths->Sample(random), 1);
}

TEST(LengthsTest, RefusesTheRest) {
  for (const char* text : {"",
                           "0",
                           "-5",
                           "1.5",
                           "nan",
                           "inf",
                           "1e300",
                           "10000001",
                           "zipf:1,2",
                           "uniform:5",
                           "uniform:9,3",
                           "uniform:0,3",
                           "normal:10",
                           "normal:10,-1",
                           "normal:0,1",
                           "lognormal:10,99",
                           "fixed:",
                           "fixed:1,2",
                           "512,600",
                           ":5"}) {
    EXPECT_THAT(Lengths::Parse(text),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("uniform:LOW,HIGH")))
        << text;
  }
}

}  // namespace
}  // namespace lynx::loadtest
