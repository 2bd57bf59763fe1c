#include "kernels/sampling/logits.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lynx::kernels {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
// Around lane and block edges.
constexpr size_t kSizes[] = {1, 2, 15, 16, 17, 1023, 1024, 1025, 5000};

std::vector<float> RandomRow(size_t size, uint32_t seed, bool with_ties) {
  std::mt19937 rng(seed);
  std::normal_distribution<float> normal(0, 4);
  std::vector<float> row(size);
  for (float& x : row) x = with_ties ? std::round(normal(rng)) : normal(rng);
  return row;
}

std::vector<TokenId> IdsBestFirst(const std::vector<float>& row) {
  std::vector<TokenId> ids(row.size());
  std::iota(ids.begin(), ids.end(), 0);
  std::stable_sort(ids.begin(), ids.end(), [&](TokenId a, TokenId b) {
    return row[static_cast<size_t>(a)] > row[static_cast<size_t>(b)];
  });
  return ids;
}

TEST(SummarizeLogitsTest, FindsTheLowestIdOfTheMaximum) {
  for (size_t size : kSizes) {
    for (uint32_t seed = 0; seed < 20; ++seed) {
      const std::vector<float> row = RandomRow(size, seed, seed % 2 == 0);
      const LogitsSummary summary = SummarizeLogits(row);
      ASSERT_TRUE(summary.valid);
      const auto max = std::max_element(row.begin(), row.end());
      ASSERT_EQ(summary.max, *max) << "size " << size << " seed " << seed;
      ASSERT_EQ(summary.argmax, max - row.begin()) << "size " << size << " seed " << seed;
    }
  }
}

TEST(SummarizeLogitsTest, NanAndPlusInfinityAnywhereAreInvalid) {
  for (size_t size : kSizes) {
    for (size_t at : {size_t{0}, size / 2, size - 1}) {
      for (float poison : {kNan, -kNan, kInf}) {
        std::vector<float> row(size, 1.0f);
        row[at] = poison;
        EXPECT_FALSE(SummarizeLogits(row).valid) << size << " " << at << " " << poison;
      }
      std::vector<float> row(size, -kInf);
      EXPECT_FALSE(SummarizeLogits(row).valid) << "nothing can be chosen";
      row[at] = -1e30f;
      EXPECT_TRUE(SummarizeLogits(row).valid);
      EXPECT_EQ(SummarizeLogits(row).argmax, static_cast<TokenId>(at));
    }
  }
}

TEST(ExpTest, IsWithinTwoUnitsInTheLastPlace) {
  EXPECT_EQ(ExpNonPositive(0), 1.0f);
  EXPECT_EQ(ExpNonPositive(-kInf), 0.0f);
  EXPECT_EQ(ExpNonPositive(-1e30f), 0.0f);
  for (float x = 0; x > -87; x -= 0.00137f) {
    const double want = std::exp(static_cast<double>(x));
    const double unit = std::ldexp(1.0, std::ilogb(want) - 23);
    ASSERT_NEAR(static_cast<double>(ExpNonPositive(x)), want, 2 * unit) << x;
  }
}

TEST(SumExpTest, AgreesWithFloat64) {
  for (size_t size : kSizes) {
    std::vector<float> row = RandomRow(size, 7, false);
    row[size / 2] = size > 1 ? -kInf : row[0];
    const float max = *std::max_element(row.begin(), row.end());
    double want = 0;
    for (float x : row) want += std::exp(static_cast<double>(x) - static_cast<double>(max));
    EXPECT_NEAR(SumExp(row, max) / want, 1.0, 4e-7) << size;
  }
}

TEST(ExpWeightsTest, EqualScalarWeightsAndPartialSums) {
  for (size_t size : kSizes) {
    const std::vector<float> row = RandomRow(size, 11, false);
    const float max = *std::max_element(row.begin(), row.end());
    std::vector<float> weights(size);
    std::vector<double> partial((size + kWeightBlock - 1) / kWeightBlock);
    ExpWeights(row, max, 0.7f, 0.01f, weights, partial);
    double total = 0;
    for (size_t i = 0; i < size; ++i) {
      const float want = ExpNonPositive((row[i] - max) / 0.7f);
      ASSERT_EQ(weights[i], want < 0.01f ? 0.0f : want) << i;
      total += static_cast<double>(weights[i]);
    }
    EXPECT_NEAR(std::accumulate(partial.begin(), partial.end(), 0.0), total, 1e-9 * total);
  }
}

TEST(TopKTest, GivesTheBestInOrderForEveryK) {
  for (size_t size : kSizes) {
    for (bool ties : {false, true}) {
      const std::vector<float> row = RandomRow(size, 3, ties);
      const std::vector<TokenId> want = IdsBestFirst(row);
      std::vector<Candidate> got;
      for (size_t k : {size_t{0}, size_t{1}, size_t{5}, size_t{511}, size_t{512}, size_t{513}, size,
                       size + 10}) {
        TopK(row, k, got);
        ASSERT_EQ(got.size(), std::min(k, size));
        for (size_t i = 0; i < got.size(); ++i) {
          ASSERT_EQ(got[i].id, want[i]) << "size " << size << " k " << k << " rank " << i;
          ASSERT_EQ(got[i].value, row[static_cast<size_t>(want[i])]);
        }
      }
    }
  }
}

}  // namespace
}  // namespace lynx::kernels
