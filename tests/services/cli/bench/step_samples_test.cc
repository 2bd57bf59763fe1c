#include "services/cli/bench/step_samples.h"

#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "services/cli/bench/quantile.h"

namespace lynx::cli {
namespace {

using ::testing::DoubleNear;

model::StepStats StatsOf(std::vector<int32_t> experts) {
  model::StepStats stats;
  for (int32_t count : experts) stats.plans.push_back({.experts = count});
  stats.plan_seconds.assign(experts.size(), 0.01f);
  return stats;
}

TEST(QuantileTest, IsOneOfTheValues) {
  EXPECT_EQ(Quantile(std::vector<double>{3, 1, 2}, 0.5), 2);
  EXPECT_EQ(Quantile(std::vector<double>{3, 1, 2, 4}, 1), 4);
  EXPECT_EQ(Quantile(std::vector<double>{7}, 0.99), 7);
}

TEST(RooflineTest, EachPartIsBoundByTheLowerOfItsRoofs) {
  const std::vector<Work> parts = {{.bytes = 100, .operations = 10},
                                   {.bytes = 10, .operations = 1000}};
  EXPECT_DOUBLE_EQ(RoofSeconds(parts, 10, 100), 10 + 10);
  EXPECT_TRUE(AnyBoundByArithmetic(parts, 10, 100));
  EXPECT_FALSE(AnyBoundByArithmetic(parts, 10, 1e6));
  EXPECT_DOUBLE_EQ(TotalBytes(parts), 110);
  EXPECT_DOUBLE_EQ(TotalOperations(parts), 1010);
}

TEST(StepSamplesTest, SharesRelateToTheBandwidthOfTheSameRound) {
  StepSamples samples;
  const std::vector<Work> work = {{.bytes = 800, .operations = 5000}};
  // The machine is half as fast in the second round, and so are its steps: the share is the same.
  for (const double speed : {1.0, 0.5}) {
    for (int i = 0; i < 3; ++i) {
      samples.Add(1.0 / speed, work, StatsOf({8, 0, 4}));
      samples.EndStep();
    }
    samples.EndRound({.bytes_per_second = 1000 * speed});
  }
  const BenchResult result = samples.Summarise(16);
  EXPECT_DOUBLE_EQ(result.bandwidth_share, 0.8);
  EXPECT_DOUBLE_EQ(result.roof_share, 0.8);
  EXPECT_FALSE(result.arithmetic_bound);
  EXPECT_DOUBLE_EQ(result.bytes_per_step, 800);
  EXPECT_DOUBLE_EQ(result.experts, 6) << "dense layers do not count";
  EXPECT_THAT(result.plan_share, DoubleNear(0.03 * 6 / 9, 1e-6));
  EXPECT_DOUBLE_EQ(result.step_ms_p50, 1500);
  EXPECT_DOUBLE_EQ(result.step_ms_p99, 2000);
  EXPECT_DOUBLE_EQ(result.tokens_per_s, 16 / 1.5);
}

TEST(StepSamplesTest, ReadsBesideThePlansShow) {
  StepSamples samples;
  model::StepStats stats = StatsOf({8});
  stats.weight_bytes_read = 1000;
  stats.weight_bytes_streamed = 1250;
  samples.Add(1, {{.bytes = 1000}}, stats);
  samples.EndStep();
  samples.EndRound({.bytes_per_second = 1000});
  EXPECT_DOUBLE_EQ(samples.Summarise(1).streamed_share, 1.25);
}

TEST(StepSamplesTest, ArithmeticRaisesTheRoof) {
  StepSamples samples;
  samples.Add(2, {{.bytes = 800, .operations = 3000}, {.bytes = 200, .operations = 0}},
              StatsOf({}));
  samples.EndStep();
  samples.EndRound({.bytes_per_second = 1000, .operations_per_second = 2000});
  const BenchResult result = samples.Summarise(1);
  EXPECT_DOUBLE_EQ(result.bandwidth_share, 0.5);
  EXPECT_DOUBLE_EQ(result.roof_share, (1.5 + 0.2) / 2);
  EXPECT_TRUE(result.arithmetic_bound);
}

TEST(StepSamplesTest, ChunksOfAPromptAreOneStep) {
  StepSamples samples;
  for (int chunk = 0; chunk < 4; ++chunk) {
    samples.Add(0.5, {{.bytes = 100, .operations = 1e9}}, StatsOf({}));
  }
  samples.EndStep();
  samples.EndRound({.bytes_per_second = 1000});
  const BenchResult result = samples.Summarise(64);
  EXPECT_DOUBLE_EQ(result.step_ms_p50, 2000);
  EXPECT_DOUBLE_EQ(result.bytes_per_step, 400);
  EXPECT_DOUBLE_EQ(result.tokens_per_s, 32);
  EXPECT_DOUBLE_EQ(result.gflop_s, 2);
}

TEST(StepSamplesTest, PoliciesAreComparedWithinRounds) {
  StepSamples exact;
  StepSamples lynx;
  for (const double speed : {1.0, 2.0, 4.0}) {
    exact.Add(1 / speed, {{.bytes = 100}}, StatsOf({}));
    exact.EndStep();
    exact.EndRound({.bytes_per_second = 1});
    lynx.Add(0.7 / speed, {{.bytes = 60}}, StatsOf({}));
    lynx.EndStep();
    lynx.EndRound({.bytes_per_second = 1});
  }
  EXPECT_DOUBLE_EQ(lynx.Against(exact).time, 0.7);
  EXPECT_DOUBLE_EQ(lynx.Against(exact).bytes, 0.6);
}

}  // namespace
}  // namespace lynx::cli
