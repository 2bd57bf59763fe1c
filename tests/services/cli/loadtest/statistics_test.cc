#include "services/cli/loadtest/statistics.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "services/cli/loadtest/random.h"

namespace lynx::loadtest {
namespace {

// numpy.percentile and numpy.std of [15, 20, 35, 40, 50, 7.5, 120].
TEST(SummariseTest, AgreesWithNumpy) {
  const Summary summary = Summarise({15, 20, 35, 40, 50, 7.5, 120});
  EXPECT_EQ(summary.count, 7);
  EXPECT_DOUBLE_EQ(summary.mean, 41.07142857142857);
  EXPECT_NEAR(summary.deviation, 35.04734407242027, 1e-12);
  EXPECT_DOUBLE_EQ(summary.min, 7.5);
  EXPECT_DOUBLE_EQ(summary.p50, 35);
  EXPECT_DOUBLE_EQ(summary.p90, 78);
  EXPECT_NEAR(summary.p95, 99, 1e-12);
  EXPECT_NEAR(summary.p99, 115.8, 1e-12);
  EXPECT_DOUBLE_EQ(summary.max, 120);
}

TEST(SummariseTest, NothingAndOne) {
  EXPECT_EQ(Summarise({}).count, 0);
  const Summary one = Summarise({3});
  EXPECT_EQ(one.p50, 3);
  EXPECT_EQ(one.p99, 3);
  EXPECT_EQ(one.deviation, 0);
}

TEST(LogHistogramTest, IsWithinItsPrecisionOfTheExactFigures) {
  Random random(5);
  LogHistogram histogram;
  std::vector<double> values;
  for (int i = 0; i < 50'000; ++i) {
    values.push_back(std::exp(3 * random.Normal() - 4));
    histogram.Add(values.back());
  }
  std::sort(values.begin(), values.end());
  for (const double share : {0.0, 0.01, 0.5, 0.9, 0.99, 1.0}) {
    const double exact = Percentile(values, share);
    EXPECT_NEAR(histogram.Quantile(share), exact, 0.003 * exact) << share;
    EXPECT_NEAR(histogram.ShareUpTo(exact), share, 0.003) << share;
  }
  const Summary got = histogram.Summarise();
  const Summary exact = Summarise(values);
  EXPECT_NEAR(got.mean, exact.mean, 1e-9 * exact.mean);
  EXPECT_NEAR(got.deviation, exact.deviation, 1e-6 * exact.deviation);
  EXPECT_EQ(got.min, exact.min);
  EXPECT_EQ(got.max, exact.max);
}

TEST(LogHistogramTest, CountsZerosAndOutliers) {
  LogHistogram histogram;
  histogram.Add(0, 3);
  histogram.Add(-1);
  histogram.Add(1e300);
  EXPECT_EQ(histogram.count(), 5u);
  EXPECT_EQ(histogram.Quantile(0.5), 0);
  EXPECT_EQ(histogram.Summarise().max, 1e6);
}

TEST(LogHistogramTest, AddingManyIsAddingOneOften) {
  LogHistogram at_once;
  at_once.Add(0.02, 4);
  LogHistogram one_by_one;
  for (int i = 0; i < 4; ++i) one_by_one.Add(0.02);
  EXPECT_EQ(at_once.Summarise().mean, one_by_one.Summarise().mean);
  EXPECT_EQ(at_once.count(), one_by_one.count());
}

}  // namespace
}  // namespace lynx::loadtest
