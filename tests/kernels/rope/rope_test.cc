#include "kernels/rope/rope.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/rope/rope_table.h"
#include "tests/support/cuda_emulation/emulated_context.h"
#include "tests/support/kernel_test.h"

namespace lynx::kernels {
namespace {

using ::lynx::testing::AllContextsAndCuda;
using ::lynx::testing::BitsOf;
using ::lynx::testing::ContextParamName;
using ::lynx::testing::kCanary;
using ::lynx::testing::KernelTest;
using ::lynx::testing::RandomNormal;
using ::lynx::testing::WithGaps;

std::vector<float> Rotate(std::vector<float> x, const std::vector<int32_t>& positions,
                          int64_t heads, int64_t head_dim, int64_t stride, const ExecContext& ctx) {
  static const int64_t kPositions = 512;
  const RopeTable table = MakeRopeTable(kPositions, MakeRopeFrequencies(head_dim, 10000.0, {}));
  const absl::Status status = Rope({.x = x.data(),
                                    .positions = positions.data(),
                                    .cosines = table.cosines.data(),
                                    .sines = table.sines.data(),
                                    .rows = static_cast<int64_t>(positions.size()),
                                    .heads = heads,
                                    .rotary_dim = head_dim,
                                    .head_stride = head_dim,
                                    .x_stride = stride,
                                    .table_positions = kPositions},
                                   ctx);
  EXPECT_TRUE(status.ok()) << status;
  return x;
}

class RopeTest : public KernelTest {};

// Half-split pairing: elements 0 and 2 turn by the angle 1, elements 1 and 3 by 1 / 100.
TEST_P(RopeTest, MatchesAHandComputedRow) {
  const auto y = Rotate({1, 2, 3, 4}, {1}, /*heads=*/1, /*head_dim=*/4, /*stride=*/4, GetParam());
  EXPECT_NEAR(y[0], 1 * std::cos(1.0) - 3 * std::sin(1.0), 1e-6);
  EXPECT_NEAR(y[1], 2 * std::cos(0.01) - 4 * std::sin(0.01), 1e-6);
  EXPECT_NEAR(y[2], 3 * std::cos(1.0) + 1 * std::sin(1.0), 1e-6);
  EXPECT_NEAR(y[3], 4 * std::cos(0.01) + 2 * std::sin(0.01), 1e-6);
}

TEST_P(RopeTest, PositionZeroChangesNothing) {
  const auto x = RandomNormal(64, 3);
  EXPECT_EQ(Rotate(x, {0}, 1, 64, 64, GetParam()), x);
}

TEST_P(RopeTest, AgreesWithReference) {
  for (size_t head_dim : {2u, 30u, 32u, 34u, 64u, 128u, 254u}) {
    for (size_t heads : {1u, 3u}) {
      const size_t width = heads * head_dim;
      const size_t stride = width + 3;
      const std::vector<int32_t> positions = {0, 1, 511, 77};
      const auto x = WithGaps(RandomNormal(4 * width, 5), 4, width, stride);
      const auto want =
          Rotate(x, positions, static_cast<int64_t>(heads), static_cast<int64_t>(head_dim),
                 static_cast<int64_t>(stride), Reference());
      const auto got =
          Rotate(x, positions, static_cast<int64_t>(heads), static_cast<int64_t>(head_dim),
                 static_cast<int64_t>(stride), GetParam());
      for (size_t i = 0; i < got.size(); ++i) {
        if (x[i] == kCanary) {
          ASSERT_EQ(got[i], kCanary);
        } else {
          // Two products and a sum: within 2 epsilons of the magnitudes, which stay below 8 here.
          ASSERT_NEAR(got[i], want[i], 16 * 1.2e-7) << head_dim << " at " << i;
        }
      }
    }
  }
}

TEST_P(RopeTest, ARowsBitsDependOnThatRowAlone) {
  const int64_t width = 4 * 50;
  std::vector<int32_t> positions;
  for (int32_t r = 0; r < 300; ++r) positions.push_back(r % 100);
  const auto x = RandomNormal(static_cast<size_t>(300 * width), 7);
  ThreadTeam team(3);
  ExecContext threaded = GetParam();
  threaded.team = &team;
  const auto all = Rotate(x, positions, 4, 50, width, threaded);
  for (int64_t r = 0; r < 300; ++r) {
    const std::vector<float> row(x.begin() + r * width, x.begin() + (r + 1) * width);
    const std::vector<float> together(all.begin() + r * width, all.begin() + (r + 1) * width);
    ASSERT_EQ(BitsOf(Rotate(row, {positions[static_cast<size_t>(r)]}, 4, 50, width, GetParam())),
              BitsOf(together));
  }
}

// Elements [3, 3 + 2 h) of heads of 40: as if they were alone, and nothing else moves.
TEST_P(RopeTest, RotatesAPartOfEachHead) {
  const std::vector<int32_t> positions = {5, 311};
  for (int64_t rotary_dim : {2, 20, 34}) {
    const RopeTable table = MakeRopeTable(512, MakeRopeFrequencies(rotary_dim, 10000.0, {}));
    const auto x = RandomNormal(2 * 3 * 40, 13);
    auto y = x;
    const absl::Status status = Rope({.x = y.data() + 3,
                                      .positions = positions.data(),
                                      .cosines = table.cosines.data(),
                                      .sines = table.sines.data(),
                                      .rows = 2,
                                      .heads = 3,
                                      .rotary_dim = rotary_dim,
                                      .head_stride = 40,
                                      .x_stride = 120,
                                      .table_positions = 512},
                                     GetParam());
    ASSERT_TRUE(status.ok()) << status;
    for (size_t head = 0; head < 6; ++head) {
      const auto begin = x.begin() + static_cast<int64_t>(head) * 40;
      const std::vector<float> part(begin + 3, begin + 3 + rotary_dim);
      std::vector<float> want(begin, begin + 40);
      const auto rotated =
          Rotate(part, {positions[head / 3]}, 1, rotary_dim, rotary_dim, GetParam());
      std::copy(rotated.begin(), rotated.end(), want.begin() + 3);
      const std::vector<float> got(y.begin() + static_cast<int64_t>(head) * 40,
                                   y.begin() + static_cast<int64_t>(head + 1) * 40);
      ASSERT_EQ(BitsOf(got), BitsOf(want)) << "head " << head << ", rotary_dim " << rotary_dim;
    }
  }
}

TEST_P(RopeTest, RefusesWhatItCannotRun) {
  std::vector<float> x(8, 1.0f);
  const RopeTable table = MakeRopeTable(4, MakeRopeFrequencies(8, 10000.0, {}));
  int32_t position = 4;
  RopeArgs args{.x = x.data(),
                .positions = &position,
                .cosines = table.cosines.data(),
                .sines = table.sines.data(),
                .rows = 1,
                .heads = 1,
                .rotary_dim = 8,
                .head_stride = 8,
                .x_stride = 8,
                .table_positions = 4};
  if (SeesContents()) {
    EXPECT_EQ(Rope(args, GetParam()).code(), absl::StatusCode::kInvalidArgument);
    position = -1;
    EXPECT_EQ(Rope(args, GetParam()).code(), absl::StatusCode::kInvalidArgument);
  }
  position = 3;
  EXPECT_TRUE(Rope(args, GetParam()).ok());
  args.rotary_dim = 7;
  EXPECT_EQ(Rope(args, GetParam()).code(), absl::StatusCode::kInvalidArgument);
  args.rotary_dim = 8;
  args.head_stride = 7;
  EXPECT_EQ(Rope(args, GetParam()).code(), absl::StatusCode::kInvalidArgument);
}

INSTANTIATE_TEST_SUITE_P(Contexts, RopeTest, ::testing::ValuesIn(AllContextsAndCuda()),
                         ContextParamName);

}  // namespace
}  // namespace lynx::kernels
