#include "kernels/cast/cast.h"

#include <cmath>
#include <limits>
#include <vector>

#include "gtest/gtest.h"
#include "tests/support/cuda_emulation/emulated_context.h"
#include "tests/support/kernel_test.h"

namespace lynx::kernels {
namespace {

using ::lynx::testing::AllContextsAndCuda;
using ::lynx::testing::ContextParamName;
using ::lynx::testing::Decode;
using ::lynx::testing::Encode;
using ::lynx::testing::kCanary;
using ::lynx::testing::KernelTest;
using ::lynx::testing::RandomNormal;

// y of 5 rows, with gaps between its heads and rows.
std::vector<std::byte> CastFive(const std::vector<float>& x, int64_t heads, int64_t width,
                                int64_t y_width, DType dtype, const ExecContext& ctx) {
  const int64_t y_stride = heads * (y_width + 4);
  auto y = Encode(std::vector<float>(static_cast<size_t>(5 * y_stride), kCanary), dtype);
  const absl::Status status = Cast({.x = x.data(),
                                    .y = y.data(),
                                    .rows = 5,
                                    .heads = heads,
                                    .width = width,
                                    .y_width = y_width,
                                    .x_head_stride = width + 3,
                                    .x_stride = heads * (width + 3),
                                    .y_head_stride = y_width + 4,
                                    .y_stride = y_stride,
                                    .y_dtype = dtype},
                                   ctx);
  EXPECT_TRUE(status.ok()) << status;
  return y;
}

class CastTest : public KernelTest {};

// Two heads of two in x, of three and a gap in y. 1 + 2^-8 lies half way between two bf16 numbers.
TEST_P(CastTest, MatchesAHandComputedRow) {
  const std::vector<float> x = {1, 1 + 0x1p-8f, -9, 3, 4, -9};
  auto y = Encode(std::vector<float>(8, kCanary), DType::kBf16);
  const float canary = Decode(y, DType::kBf16)[0];
  ASSERT_TRUE(Cast({.x = x.data(),
                    .y = y.data(),
                    .rows = 1,
                    .heads = 2,
                    .width = 2,
                    .y_width = 3,
                    .x_head_stride = 3,
                    .x_stride = 6,
                    .y_head_stride = 4,
                    .y_stride = 8,
                    .y_dtype = DType::kBf16},
                   GetParam())
                  .ok());
  EXPECT_EQ(Decode(y, DType::kBf16), (std::vector<float>{1, 1, 0, canary, 3, 4, 0, canary}));
}

TEST_P(CastTest, EqualsTheReferenceBitForBitAndTouchesNothingElse) {
  ThreadTeam team(3);
  ExecContext threaded = GetParam();
  threaded.team = &team;
  for (DType dtype : {DType::kF32, DType::kBf16}) {
    for (int64_t width : {1, 15, 16, 17, 100, 128}) {
      for (int64_t padding : {0, 1, 16, 31}) {
        for (int64_t heads : {1, 3, 70}) {
          const auto x = RandomNormal(static_cast<size_t>(5 * heads * (width + 3)), 3);
          const auto want = CastFive(x, heads, width, width + padding, dtype, Reference());
          ASSERT_EQ(CastFive(x, heads, width, width + padding, dtype, GetParam()), want);
          ASSERT_EQ(CastFive(x, heads, width, width + padding, dtype, threaded), want);
        }
      }
    }
  }
}

TEST_P(CastTest, NanAndInfStayThemselves) {
  const float inf = std::numeric_limits<float>::infinity();
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<float> x(5 * 4, inf);
  EXPECT_EQ(Decode(CastFive(x, 1, 1, 1, DType::kBf16, GetParam()), DType::kBf16)[0], inf);
  const std::vector<float> nans(5 * 4, nan);
  EXPECT_TRUE(
      std::isnan(Decode(CastFive(nans, 1, 1, 1, DType::kBf16, GetParam()), DType::kBf16)[0]));
}

TEST_P(CastTest, RefusesWhatItCannotRun) {
  const CastArgs good{.heads = 2,
                      .width = 4,
                      .y_width = 8,
                      .x_head_stride = 4,
                      .x_stride = 8,
                      .y_head_stride = 8,
                      .y_stride = 16};
  EXPECT_TRUE(Cast(good, GetParam()).ok());
  auto refused = [&](void (*change)(CastArgs&)) {
    CastArgs bad = good;
    change(bad);
    EXPECT_EQ(Cast(bad, GetParam()).code(), absl::StatusCode::kInvalidArgument);
  };
  refused([](auto& args) { args.heads = 0; });
  refused([](auto& args) { args.width = 0; });
  refused([](auto& args) { args.y_width = 3; });
  refused([](auto& args) { args.x_head_stride = 3; });
  refused([](auto& args) { args.x_stride = 7; });
  refused([](auto& args) { args.y_head_stride = 7; });
  refused([](auto& args) { args.y_stride = 15; });
  refused([](auto& args) { args.y_dtype = DType::kF16; });
}

INSTANTIATE_TEST_SUITE_P(Contexts, CastTest, ::testing::ValuesIn(AllContextsAndCuda()),
                         ContextParamName);

}  // namespace
}  // namespace lynx::kernels
