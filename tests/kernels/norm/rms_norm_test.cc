#include "kernels/norm/rms_norm.h"

#include <cmath>
#include <limits>
#include <vector>

#include "gtest/gtest.h"
#include "tests/support/cuda_emulation/emulated_context.h"
#include "tests/support/kernel_test.h"
#include "tests/support/tolerance.h"

namespace lynx::kernels {
namespace {

using ::lynx::testing::AllContextsAndCuda;
using ::lynx::testing::BitsOf;
using ::lynx::testing::ContextParamName;
using ::lynx::testing::Decode;
using ::lynx::testing::Encode;
using ::lynx::testing::kCanary;
using ::lynx::testing::KernelTest;
using ::lynx::testing::RandomNormal;
using ::lynx::testing::ReductionTolerance;
using ::lynx::testing::WithGaps;

// Runs on [rows, gain.size()] inputs whose rows are `stride` apart; returns all of y, gaps
// included.
std::vector<float> Normalise(std::vector<float> x, const std::vector<float>& gain, int64_t rows,
                             int64_t stride, const ExecContext& ctx, bool in_place = false,
                             bool round = false) {
  std::vector<float> y(x.size(), kCanary);
  const auto hidden = static_cast<int64_t>(gain.size());
  const absl::Status status = RmsNorm({.x = x.data(),
                                       .gain = gain.data(),
                                       .y = in_place ? x.data() : y.data(),
                                       .rows = rows,
                                       .hidden = hidden,
                                       .x_stride = stride,
                                       .y_stride = stride,
                                       .round_bf16 = round},
                                      ctx);
  EXPECT_TRUE(status.ok()) << status;
  return in_place ? x : y;
}

class RmsNormTest : public KernelTest {};

// Worked by hand, so it tests the reference too: rms([3, 4]) = sqrt(12.5) (epsilon is negligible).
TEST_P(RmsNormTest, MatchesAHandComputedRow) {
  const auto y = Normalise({3, 4}, {1, 2}, /*rows=*/1, /*stride=*/2, GetParam());
  EXPECT_NEAR(y[0], 3 / std::sqrt(12.5), 1e-6);
  EXPECT_NEAR(y[1], 8 / std::sqrt(12.5), 1e-6);
}

// 1 / sqrt(1 + eps) rounds to 1; 1.01171875 is 1 + 3 * 2^-8, between two bf16 values.
TEST_P(RmsNormTest, RoundsBeforeAndAfterTheGain) {
  const auto y = Normalise({1, 1}, {1.01171875f, 1}, 1, 2, GetParam(), false, /*round=*/true);
  EXPECT_EQ(y[0], 1.015625f);
  EXPECT_EQ(y[1], 1.0f);
}

TEST_P(RmsNormTest, WritesBf16AsItRounds) {
  const size_t rows = 3, hidden = 37, stride = 40;
  const auto x = WithGaps(RandomNormal(rows * hidden, 19), rows, hidden, stride);
  const auto gain = RandomNormal(hidden, 23);
  const auto rounded = Normalise(x, gain, rows, stride, GetParam(), false, /*round=*/true);
  std::vector<std::byte> y = Encode(std::vector<float>(x.size(), kCanary), DType::kBf16);
  const absl::Status status = RmsNorm({.x = x.data(),
                                       .gain = gain.data(),
                                       .y = y.data(),
                                       .rows = rows,
                                       .hidden = hidden,
                                       .x_stride = stride,
                                       .y_stride = stride,
                                       .y_dtype = DType::kBf16},
                                      GetParam());
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_EQ(Decode(y, DType::kBf16), testing::RoundedToBf16(rounded));
}

// Sizes around one vector and around several, real model widths, and a width that is odd
// everywhere.
TEST_P(RmsNormTest, AgreesWithReference) {
  for (size_t hidden : {1u, 15u, 16u, 17u, 31u, 33u, 64u, 192u, 2048u, 8191u}) {
    for (size_t rows : {1u, 3u, 64u}) {
      for (size_t gap : {0u, 5u}) {
        for (bool in_place : {false, true}) {
          const size_t stride = hidden + gap;
          const auto x = WithGaps(RandomNormal(rows * hidden, 7), rows, hidden, stride);
          const auto gain = RandomNormal(hidden, 11);
          const auto n = static_cast<int64_t>(rows);
          const auto want = Normalise(x, gain, n, static_cast<int64_t>(stride), Reference());
          const auto got =
              Normalise(x, gain, n, static_cast<int64_t>(stride), GetParam(), in_place);
          for (size_t i = 0; i < got.size(); ++i) {
            const double bound =
                ReductionTolerance(static_cast<int64_t>(hidden)) * std::abs(double{want[i]});
            ASSERT_NEAR(got[i], want[i], bound) << hidden << " x " << rows << " at " << i;
          }
        }
      }
    }
  }
}

TEST_P(RmsNormTest, ARowsBitsDependOnThatRowAlone) {
  const size_t hidden = 203;
  const size_t rows = 300;
  const auto x = RandomNormal(rows * hidden, 13);
  const auto gain = RandomNormal(hidden, 17);
  ThreadTeam team(3);
  ExecContext threaded = GetParam();
  threaded.team = &team;
  const auto all = Normalise(x, gain, rows, hidden, threaded);
  for (size_t r = 0; r < rows; ++r) {
    const auto begin = static_cast<std::ptrdiff_t>(r * hidden);
    const std::vector<float> row(x.begin() + begin, x.begin() + begin + hidden);
    const std::vector<float> together(all.begin() + begin, all.begin() + begin + hidden);
    ASSERT_EQ(BitsOf(Normalise(row, gain, 1, hidden, GetParam())), BitsOf(together));
  }
}

TEST_P(RmsNormTest, ABadRowDoesNotSpoilItsNeighbours) {
  const float inf = std::numeric_limits<float>::infinity();
  const auto y = Normalise({1, 1, inf, 1, 1, 1}, {1, 1}, /*rows=*/3, /*stride=*/2, GetParam());
  EXPECT_TRUE(std::isnan(y[2]));
  for (size_t i : {0u, 1u, 4u, 5u}) EXPECT_NEAR(y[i], 1.0f, 1e-4) << i;
}

TEST_P(RmsNormTest, ZeroRowsIsANoOpEvenWithNullPointers) {
  EXPECT_TRUE(RmsNorm({.hidden = 8, .x_stride = 8, .y_stride = 8}, GetParam()).ok());
}

TEST_P(RmsNormTest, RefusesShapesItCannotRun) {
  const RmsNormArgs good = {.rows = 0, .hidden = 8, .x_stride = 8, .y_stride = 8};
  auto code = [](const RmsNormArgs& args) { return RmsNorm(args, GetParam()).code(); };
  RmsNormArgs bad = good;
  bad.hidden = 0;
  EXPECT_EQ(code(bad), absl::StatusCode::kInvalidArgument);
  bad = good;
  bad.x_stride = 7;
  EXPECT_EQ(code(bad), absl::StatusCode::kInvalidArgument);
  bad = good;
  bad.epsilon = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(code(bad), absl::StatusCode::kInvalidArgument);
}

INSTANTIATE_TEST_SUITE_P(Contexts, RmsNormTest, ::testing::ValuesIn(AllContextsAndCuda()),
                         ContextParamName);

}  // namespace
}  // namespace lynx::kernels
