#include "kernels/elementwise/elementwise.h"

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
using ::lynx::testing::ContextParamName;
using ::lynx::testing::kCanary;
using ::lynx::testing::KernelTest;
using ::lynx::testing::RandomNormal;
using ::lynx::testing::ReductionTolerance;

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

class ElementwiseTest : public KernelTest {};

TEST_P(ElementwiseTest, ClipHoldsWithinTheLimitAndLeavesNan) {
  std::vector<float> x = {-3, -2, 0.5f, 2, 9, -9, 5, 1, kInf, -kInf, kNan, 2.5f};
  ASSERT_TRUE(
      Clip({.x = x.data(), .rows = 2, .width = 5, .x_stride = 6, .limit = 2}, GetParam()).ok());
  EXPECT_TRUE(std::isnan(x[10]));
  x[10] = 0;
  EXPECT_EQ(x, (std::vector<float>{-2, -2, 0.5f, 2, 2, -9, 2, 1, 2, -2, 0, 2.5f}));
}

// 1 + 2 log(1 + floor((p + 1) / 4)): 3 tokens reach nothing, 4 reach 1.
TEST_P(ElementwiseTest, GrowFollowsThePosition) {
  const std::vector<int32_t> positions = {2, 3, 11, 0};
  std::vector<float> x = {1, -2, kCanary, 1, -2, kCanary, 1, -2, kCanary, kInf, -2, kCanary};
  ASSERT_TRUE(Grow({.x = x.data(),
                    .positions = positions.data(),
                    .rows = 4,
                    .width = 2,
                    .x_stride = 3,
                    .growth = 2,
                    .floor = 4},
                   GetParam())
                  .ok());
  const auto at = [](double reached) { return 1 + 2 * std::log1p(reached); };
  const std::vector<double> want = {1,     -2,         kCanary, at(1), -2 * at(1), kCanary,
                                    at(3), -2 * at(3), kCanary, kInf,  -2,         kCanary};
  for (size_t i = 0; i < x.size(); ++i) {
    if (std::isinf(want[i])) {
      EXPECT_EQ(x[i], kInf);
    } else {
      EXPECT_NEAR(x[i], want[i], ReductionTolerance(1) * std::abs(want[i])) << i;
    }
  }
}

TEST_P(ElementwiseTest, GateWeightsAreSigmoids) {
  std::vector<float> weights = RandomNormal(700, 3);
  weights[0] = 200, weights[1] = -200, weights[2] = 0, weights[3] = kNan;
  const std::vector<float> gates = weights;
  ASSERT_TRUE(
      GateWeights({.weights = weights.data(), .rows = 699, .scale = 0.5f}, GetParam()).ok());
  EXPECT_EQ(weights[0], 0.5f);
  EXPECT_EQ(weights[1], 0.0f);
  EXPECT_EQ(weights[2], 0.25f);
  EXPECT_TRUE(std::isnan(weights[3]));
  for (size_t i = 4; i < 699; ++i) {
    const double want = 0.5 / (1 + std::exp(-double{gates[i]}));
    ASSERT_NEAR(weights[i], want, ReductionTolerance(1) * want) << i;
  }
  EXPECT_EQ(weights[699], gates[699]);
}

TEST_P(ElementwiseTest, GatherRowsTakesThemInAnyOrder) {
  ThreadTeam team(3);
  ExecContext threaded = GetParam();
  threaded.team = &team;
  for (const size_t width : {1u, 255u, 600u}) {
    const auto x = RandomNormal(50 * (width + 3), 5);
    std::vector<int32_t> numbers;
    for (int32_t r = 0; r < 70; ++r) numbers.push_back(r * 13 % 50);
    std::vector<float> y(70 * (width + 1), kCanary);
    ASSERT_TRUE(GatherRows({.x = x.data(),
                            .numbers = numbers.data(),
                            .y = y.data(),
                            .rows = 70,
                            .width = static_cast<int64_t>(width),
                            .x_stride = static_cast<int64_t>(width) + 3,
                            .y_stride = static_cast<int64_t>(width) + 1},
                           threaded)
                    .ok());
    for (size_t r = 0; r < 70; ++r) {
      const auto from = static_cast<size_t>(numbers[r]) * (width + 3);
      for (size_t c = 0; c < width; ++c) ASSERT_EQ(y[r * (width + 1) + c], x[from + c]);
      ASSERT_EQ(y[r * (width + 1) + width], kCanary);
    }
  }
}

TEST_P(ElementwiseTest, RefusesWhatItCannotRunAndNoRowsAreFine) {
  const auto code = [](const absl::Status& status) { return status.code(); };
  constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
  const ExecContext& ctx = GetParam();
  EXPECT_TRUE(Clip({.width = 4, .x_stride = 4, .limit = 1}, ctx).ok());
  EXPECT_EQ(code(Clip({.width = 4, .x_stride = 3, .limit = 1}, ctx)), kInvalid);
  EXPECT_EQ(code(Clip({.width = 4, .x_stride = 4, .limit = kNan}, ctx)), kInvalid);
  EXPECT_TRUE(Grow({.width = 4, .x_stride = 4, .floor = 1}, ctx).ok());
  EXPECT_EQ(code(Grow({.width = 0, .x_stride = 4, .floor = 1}, ctx)), kInvalid);
  EXPECT_EQ(code(Grow({.width = 4, .x_stride = 4}, ctx)), kInvalid);
  EXPECT_TRUE(GateWeights({}, ctx).ok());
  EXPECT_EQ(code(GateWeights({.rows = -1}, ctx)), kInvalid);
  EXPECT_TRUE(GatherRows({.width = 4, .x_stride = 4, .y_stride = 4}, ctx).ok());
  EXPECT_EQ(code(GatherRows({.width = 4, .x_stride = 4, .y_stride = 3}, ctx)), kInvalid);
}

INSTANTIATE_TEST_SUITE_P(Contexts, ElementwiseTest, ::testing::ValuesIn(AllContextsAndCuda()),
                         ContextParamName);

}  // namespace
}  // namespace lynx::kernels
