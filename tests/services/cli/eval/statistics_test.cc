#include "services/cli/eval/statistics.h"

#include <cmath>
#include <limits>
#include <vector>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lynx::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(StatisticsTest, TheErrorOfAMeanIsThatOfASample) {
  // Deviations -3, -1, 1, 3: variance 20/3 of a sample, a fourth of it of the mean.
  const std::vector<double> values = {1, 3, 5, 7};
  EXPECT_DOUBLE_EQ(EstimateMean(values).mean, 4);
  EXPECT_DOUBLE_EQ(EstimateMean(values).error, std::sqrt(20.0 / 3 / 4));
  EXPECT_EQ(EstimateMean(std::vector<double>{5}).error, 0);
  EXPECT_EQ(EstimateMean({}).mean, 0);
}

TEST(StatisticsTest, ErrorsOfIndependentEstimatesAddInQuadrature) {
  const std::vector<Estimate> estimates = {{.mean = 1, .error = 3}, {.mean = 2, .error = 4}};
  EXPECT_DOUBLE_EQ(AverageOf(estimates).mean, 1.5);
  EXPECT_DOUBLE_EQ(AverageOf(estimates).error, 2.5);
}

TEST(StatisticsTest, LogitsBecomeADistribution) {
  const std::vector<float> logits = {1, 3, 3, -2};
  const auto next = Summarise(logits);
  ASSERT_TRUE(next.ok());
  EXPECT_EQ(next->top, 1) << "the lower id of two equal logits";
  double total = 0;
  for (TokenId token = 0; token < 4; ++token) {
    total += std::exp(-NegativeLogLikelihood(logits, *next, token));
  }
  EXPECT_NEAR(total, 1, 1e-6) << "terms are float32";
  EXPECT_NEAR(NegativeLogLikelihood(logits, *next, 1),
              std::log(std::exp(-2.0) + 2 + std::exp(-5.0)), 1e-6);
}

TEST(StatisticsTest, HugeLogitsDoNotOverflow) {
  const std::vector<float> logits = {1e30f, -1e30f};
  const auto next = Summarise(logits);
  ASSERT_TRUE(next.ok());
  EXPECT_EQ(NegativeLogLikelihood(logits, *next, 0), 0);
}

TEST(StatisticsTest, BrokenLogitsAreAnError) {
  const float inf = std::numeric_limits<float>::infinity();
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const std::vector<float>& logits :
       {std::vector<float>{0, nan}, {nan, 0}, {0, inf}, {-inf, -inf}, {}}) {
    EXPECT_EQ(Summarise(logits).status().code(), absl::StatusCode::kInternal);
  }
}

double DivergenceOf(const std::vector<float>& p, const std::vector<float>& q) {
  std::vector<float> probabilities(p.size());
  FillProbabilities(p, *Summarise(p), probabilities);
  return Divergence(probabilities, p, *Summarise(p), q, *Summarise(q));
}

TEST(StatisticsTest, DivergenceIsExactlyZeroForEqualBitsAndElseAsByHand) {
  const std::vector<float> p = {0, std::log(3.0f)};  // 1/4, 3/4
  const std::vector<float> q = {0, 0};               // 1/2, 1/2
  EXPECT_EQ(DivergenceOf(p, p), 0);
  EXPECT_NEAR(DivergenceOf(p, q), 0.25 * std::log(0.5) + 0.75 * std::log(1.5), 1e-6);
  const std::vector<float> certain = {0, -std::numeric_limits<float>::infinity()};
  EXPECT_NEAR(DivergenceOf(certain, q), std::log(2.0), 1e-6);
}

TEST(StatisticsTest, InterpolatesBetweenNeighboursInAnyOrderAndNeverBeyond) {
  const std::vector<double> xs = {30, 10, 20};
  const auto bracket = FindBracket(xs, 12.5);
  ASSERT_TRUE(bracket.has_value());
  EXPECT_EQ(bracket->low, 1u);
  EXPECT_EQ(bracket->high, 2u);
  EXPECT_DOUBLE_EQ(bracket->share, 0.25);
  EXPECT_DOUBLE_EQ(Interpolate(*bracket, 1.0, 3.0), 1.5);
  EXPECT_DOUBLE_EQ(
      Interpolate(*bracket, Estimate{.mean = 1, .error = 0.1}, Estimate{.mean = 3, .error = 0.5})
          .error,
      0.2);
  EXPECT_EQ(FindBracket(xs, 10)->low, 1u);
  EXPECT_EQ(FindBracket(xs, 30)->high, 0u);
  EXPECT_FALSE(FindBracket(xs, 9.9).has_value());
  EXPECT_FALSE(FindBracket(xs, 30.1).has_value());
  EXPECT_FALSE(FindBracket({}, 1).has_value());
}

TEST(StatisticsTest, TheFrontHoldsWhatNothingBeats) {
  const std::vector<Tradeoff> points = {{.cost = 5, .loss = 0},    {.cost = 1, .loss = 9},
                                        {.cost = 3, .loss = 4},    {.cost = 3, .loss = 3},
                                        {.cost = 4, .loss = 3},    {.cost = 6, .loss = -1},
                                        {.cost = 6, .loss = -1.0}, {.cost = 2, .loss = 9}};
  EXPECT_THAT(ParetoFront(points), ElementsAre(1, 3, 0, 5));
  EXPECT_THAT(ParetoFront({}), IsEmpty());
}

}  // namespace
}  // namespace lynx::cli
