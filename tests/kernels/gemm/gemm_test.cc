#include "kernels/gemm/gemm.h"

#include <cmath>
#include <limits>
#include <vector>

#include "gtest/gtest.h"
#include "tests/support/kernel_test.h"
#include "tests/support/tolerance.h"

namespace lynx::kernels {
namespace {

using ::lynx::testing::AllContexts;
using ::lynx::testing::BitsOf;
using ::lynx::testing::ContextParamName;
using ::lynx::testing::Encode;
using ::lynx::testing::kCanary;
using ::lynx::testing::KernelTest;
using ::lynx::testing::RandomNormal;
using ::lynx::testing::ReductionTolerance;
using ::lynx::testing::WithGaps;

struct Problem {
  size_t rows, in, out;
  DType dtype = DType::kBf16;
  size_t gap = 0;
  bool accumulate = false;
};

// y of `x` [rows, in + gap], all of it, gaps included.
std::vector<float> Multiply(const Problem& p, const std::vector<float>& x,
                            const std::vector<std::byte>& w, const ExecContext& ctx) {
  const size_t stride = p.out + p.gap;
  std::vector<float> y = WithGaps(RandomNormal(p.rows * p.out, 23), p.rows, p.out, stride);
  const absl::Status status = Gemm({.x = x.data(),
                                    .w = {.data = w.data(), .dtype = p.dtype},
                                    .y = y.data(),
                                    .rows = static_cast<int64_t>(p.rows),
                                    .in = static_cast<int64_t>(p.in),
                                    .out = static_cast<int64_t>(p.out),
                                    .x_stride = static_cast<int64_t>(p.in + p.gap),
                                    .y_stride = static_cast<int64_t>(stride),
                                    .accumulate = p.accumulate},
                                   ctx);
  EXPECT_TRUE(status.ok()) << status;
  return y;
}

class GemmTest : public KernelTest {};

TEST_P(GemmTest, MatchesAHandComputedProduct) {
  const Problem p{.rows = 2, .in = 3, .out = 2, .dtype = DType::kF32};
  const auto w = Encode({1, 2, 3, 0, 1, -1}, DType::kF32);
  EXPECT_EQ(Multiply(p, {1, 0, 2, 3, 4, 5}, w, GetParam()), (std::vector<float>{7, -2, 26, -1}));
}

// Sizes around the vector, the tile and the row block.
TEST_P(GemmTest, AgreesWithReference) {
  for (DType dtype : {DType::kF32, DType::kBf16, DType::kF16}) {
    for (size_t in : {1u, 15u, 16u, 17u, 33u, 96u, 200u}) {
      for (size_t out : {1u, 3u, 4u, 5u, 17u, 66u}) {
        for (size_t rows : {1u, 2u, 3u, 4u, 5u, 33u}) {
          const Problem p{rows, in, out, dtype, /*gap=*/rows % 2 * 3, /*accumulate=*/rows > 3};
          const auto x = WithGaps(RandomNormal(rows * in, 3), rows, in, in + p.gap);
          const auto w_values = RandomNormal(in * out, 5);
          const auto w = Encode(w_values, dtype);
          const auto want = Multiply(p, x, w, Reference());
          const auto got = Multiply(p, x, w, GetParam());
          for (size_t i = 0; i < got.size(); ++i) {
            const size_t r = i / (out + p.gap);
            const size_t o = i % (out + p.gap);
            if (o >= out) {
              ASSERT_EQ(got[i], kCanary);
              continue;
            }
            double magnitude = std::abs(double{want[i]});
            for (size_t k = 0; k < in; ++k) {
              magnitude += std::abs(double{x[r * (in + p.gap) + k]} * w_values[o * in + k]);
            }
            ASSERT_NEAR(got[i], want[i], ReductionTolerance(static_cast<int64_t>(in)) * magnitude)
                << rows << " x " << in << " x " << out << " " << Name(dtype) << " at " << i;
          }
        }
      }
    }
  }
}

// The promise that exactness rests on: whatever shares the call, however it is split.
TEST_P(GemmTest, ARowsBitsDependOnThatRowAlone) {
  ThreadTeam team(3);
  ExecContext threaded = GetParam();
  threaded.team = &team;
  for (DType dtype : {DType::kF32, DType::kBf16, DType::kF16}) {
    const size_t in = 203;
    const size_t out = 131;
    const size_t rows = IsReference() ? 5 : 70;
    const auto x = RandomNormal(rows * in, 7);
    const auto w = Encode(RandomNormal(in * out, 9), dtype);
    const auto all = Multiply({rows, in, out, dtype}, x, w, threaded);
    for (size_t count : {1u, 2u, 3u, 5u}) {
      for (size_t r = 0; r + count <= rows; ++r) {
        const auto at = [](size_t i) { return static_cast<std::ptrdiff_t>(i); };
        const std::vector<float> part(x.begin() + at(r * in), x.begin() + at((r + count) * in));
        const std::vector<float> together(all.begin() + at(r * out),
                                          all.begin() + at((r + count) * out));
        ASSERT_EQ(BitsOf(Multiply({count, in, out, dtype}, part, w, GetParam())), BitsOf(together))
            << "rows " << r << " to " << r + count;
      }
    }
  }
}

TEST(GemmClassTest, Avx2AndAvx512AgreeBitForBit) {
  if (BestIsa() < Isa::kAvx512) GTEST_SKIP() << "no AVX-512 here";
  const Problem p{.rows = 7, .in = 203, .out = 67, .dtype = DType::kF32};
  const auto x = RandomNormal(p.rows * p.in, 7);
  const auto w = Encode(RandomNormal(p.in * p.out, 9), p.dtype);
  EXPECT_EQ(BitsOf(Multiply(p, x, w, {.isa = Isa::kAvx2})),
            BitsOf(Multiply(p, x, w, {.isa = Isa::kAvx512})));
}

TEST_P(GemmTest, ABadRowDoesNotSpoilItsNeighbours) {
  const Problem p{.rows = 3, .in = 20, .out = 5};
  auto x = RandomNormal(p.rows * p.in, 7);
  x[25] = std::numeric_limits<float>::quiet_NaN();
  const auto y = Multiply(p, x, Encode(RandomNormal(p.in * p.out, 9), p.dtype), GetParam());
  for (size_t i = 0; i < y.size(); ++i) EXPECT_EQ(std::isnan(y[i]), i / p.out == 1) << i;
}

TEST_P(GemmTest, RefusesShapesItCannotRun) {
  const GemmArgs good = {.rows = 0, .in = 4, .out = 4, .x_stride = 4, .y_stride = 4};
  EXPECT_TRUE(Gemm(good, GetParam()).ok());
  for (auto member : {&GemmArgs::in, &GemmArgs::out, &GemmArgs::x_stride, &GemmArgs::y_stride}) {
    GemmArgs bad = good;
    bad.*member = 0;
    EXPECT_EQ(Gemm(bad, GetParam()).code(), absl::StatusCode::kInvalidArgument);
  }
}

INSTANTIATE_TEST_SUITE_P(Contexts, GemmTest, ::testing::ValuesIn(AllContexts()), ContextParamName);

}  // namespace
}  // namespace lynx::kernels
