#include "kernels/gemm/gemm.h"

#include <atomic>
#include <cmath>
#include <deque>
#include <limits>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/gemm/panel_items.h"
#include "tests/support/cuda_emulation/emulated_context.h"
#include "tests/support/kernel_test.h"
#include "tests/support/packed.h"
#include "tests/support/tolerance.h"

namespace lynx::kernels {
namespace {

using ::lynx::testing::ActivationRows;
using ::lynx::testing::AllContextsAndCuda;
using ::lynx::testing::BitsOf;
using ::lynx::testing::ContextParamName;
using ::lynx::testing::Decode;
using ::lynx::testing::Encode;
using ::lynx::testing::kCanary;
using ::lynx::testing::KernelTest;
using ::lynx::testing::PackedMatrix;
using ::lynx::testing::RandomNormal;
using ::lynx::testing::ReductionTolerance;
using ::lynx::testing::WithGaps;

constexpr DType kXTypes[] = {DType::kF32, DType::kBf16};
constexpr DType kWeightTypes[] = {DType::kF32, DType::kBf16, DType::kF16};

// y of all of x, gaps included, and of nothing but x if `accumulate` is false.
std::vector<float> Multiply(const ActivationRows& x, const Matrix& w, const ExecContext& ctx,
                            int64_t y_gap = 0, bool accumulate = false) {
  const int64_t stride = w.out + y_gap;
  const auto size = [](int64_t n) { return static_cast<size_t>(n); };
  std::vector<float> y =
      WithGaps(RandomNormal(size(x.rows() * w.out), 23), size(x.rows()), size(w.out), size(stride));
  const absl::Status status = Gemm({.x = x.data(),
                                    .w = w,
                                    .y = y.data(),
                                    .rows = x.rows(),
                                    .x_stride = x.stride(),
                                    .y_stride = stride,
                                    .x_dtype = x.dtype(),
                                    .accumulate = accumulate},
                                   ctx);
  EXPECT_TRUE(status.ok()) << status;
  return y;
}

class GemmTest : public KernelTest {
 protected:
  void SetUp() override {
    KernelTest::SetUp();
    SkipIfEmulatedInShort();
  }
};

TEST_P(GemmTest, MatchesAHandComputedProduct) {
  for (DType x_dtype : kXTypes) {
    for (DType dtype : kWeightTypes) {
      const PackedMatrix w(Encode({1, 2, 3, 0, 1, -1}, dtype), dtype, /*out=*/2, /*in=*/3);
      const ActivationRows x({1, 0, 2, 3, 4, 5}, /*rows=*/2, x_dtype);
      EXPECT_EQ(Multiply(x, w.matrix(), GetParam()), (std::vector<float>{7, -2, 26, -1}));
    }
  }
}

// y as it was, then what the product is scaled by and what is added to it.
TEST_P(GemmTest, ScalesAddsABiasAndAccumulates) {
  const PackedMatrix w(Encode({1, 2, 3, 0, 1, -1}, DType::kF32), DType::kF32, /*out=*/2, /*in=*/3);
  const ActivationRows x({1, 0, 2, 3, 4, 5}, /*rows=*/2, DType::kF32);
  const std::vector<float> bias = {0.25f, -8};
  std::vector<float> y = {100, 200, 300, 400};
  GemmArgs args{.x = x.data(),
                .w = w.matrix(),
                .y = y.data(),
                .rows = 2,
                .x_stride = x.stride(),
                .y_stride = 2,
                .scale = 0.5f,
                .bias = bias.data()};
  ASSERT_TRUE(Gemm(args, GetParam()).ok());
  EXPECT_EQ(y, (std::vector<float>{3.75f, -9, 13.25f, -8.5f}));
  args.accumulate = true;
  args.bias = nullptr;
  ASSERT_TRUE(Gemm(args, GetParam()).ok());
  EXPECT_EQ(y, (std::vector<float>{7.25f, -10, 26.25f, -9}));
}

// As many as there may be, each with its own shape, and some without rows.
TEST_P(GemmTest, ProductsInOneCallAreThoseOfEachAlone) {
  ThreadTeam team(3);
  ExecContext threaded = GetParam();
  threaded.team = &team;
  std::deque<PackedMatrix> weights;  // Neither moves.
  std::deque<ActivationRows> inputs;
  std::vector<std::vector<float>> want;
  std::vector<std::vector<float>> got;
  const size_t count = IsEmulated() ? 70 : kMaxGemms;  // More than one launch takes.
  for (uint32_t i = 0; i < count; ++i) {
    const int64_t in = 1 + i % 40, out = 1 + i * 7 % 70, rows = 1 + i % 4;
    const auto values = RandomNormal(static_cast<size_t>(in * out), i);
    weights.emplace_back(Encode(values, DType::kF32), DType::kF32, out, in);
    inputs.emplace_back(RandomNormal(static_cast<size_t>(rows * in), i + 1), rows, DType::kF32);
    const std::vector<float> alone = Multiply(inputs.back(), weights.back().matrix(), GetParam());
    want.push_back(i % 5 == 0 ? std::vector<float>(alone.size()) : alone);
    got.emplace_back(alone.size());
  }
  std::vector<GemmArgs> products;
  for (size_t i = 0; i < count; ++i) {
    const Matrix w = weights[i].matrix();
    products.push_back({.x = inputs[i].data(),
                        .w = w,
                        .y = got[i].data(),
                        .rows = i % 5 == 0 ? 0 : inputs[i].rows(),
                        .x_stride = inputs[i].stride(),
                        .y_stride = w.out});
  }
  ASSERT_TRUE(Gemm(products, threaded).ok());
  for (size_t i = 0; i < count; ++i) ASSERT_EQ(BitsOf(got[i]), BitsOf(want[i])) << i;
  products.resize(kMaxGemms + 1, products.back());
  EXPECT_EQ(Gemm(products, threaded).code(), absl::StatusCode::kInvalidArgument);
}

// Sizes around the pair, the block of depth, the panel and the tiles of rows.
TEST_P(GemmTest, AgreesWithReference) {
  for (DType x_dtype : kXTypes) {
    for (DType dtype : kWeightTypes) {
      for (int64_t in : {1, 2, 31, 32, 33, 200, 1025}) {
        for (int64_t out : {1, 16, 31, 33, 70}) {
          const auto size = static_cast<size_t>(in * out);
          const auto file = Encode(RandomNormal(size, 5), dtype);
          const auto w_values = Decode(file, dtype);
          const PackedMatrix w(file, dtype, out, in);
          for (int64_t rows : {1, 2, 5, 8, 9, 16, 17, 33}) {
            if (in > 200 && out > 33) continue;  // Long enough without.
            if (IsEmulated() && (in == 2 || in > 200 || out == 16 || out == 31)) continue;
            const ActivationRows x(RandomNormal(static_cast<size_t>(rows * in), 3), rows, x_dtype,
                                   /*gap=*/rows % 2 * 32);
            const int64_t y_gap = rows % 2 * 3;
            const bool accumulate = rows > 8;
            const auto want = Multiply(x, w.matrix(), Reference(), y_gap, accumulate);
            const auto got = Multiply(x, w.matrix(), GetParam(), y_gap, accumulate);
            for (int64_t r = 0; r < rows; ++r) {
              for (int64_t o = 0; o < out + y_gap; ++o) {
                const auto i = static_cast<size_t>(r * (out + y_gap) + o);
                if (o >= out) {
                  ASSERT_EQ(got[i], kCanary);
                  continue;
                }
                double magnitude = std::abs(double{want[i]});
                for (int64_t k = 0; k < in; ++k) {
                  magnitude +=
                      std::abs(double{x.At(r, k)} * w_values[static_cast<size_t>(o * in + k)]);
                }
                ASSERT_NEAR(got[i], want[i], ReductionTolerance(in) * magnitude)
                    << rows << " x " << in << " x " << out << " " << Name(x_dtype) << " by "
                    << Name(dtype) << " at " << r << ", " << o;
              }
            }
          }
        }
      }
    }
  }
}

// The promise that exactness rests on: a row alone, at any place of a batch of any size (so in
// every shape of tile, and across a block of rows), beside other rows, on any number of threads.
TEST_P(GemmTest, ARowsBitsDependOnThatRowAlone) {
  ThreadTeam team(3);
  ExecContext threaded = GetParam();
  threaded.team = &team;
  // Several turns of the tile registers, and a rest that does not come in pairs.
  const int64_t in = IsReference() ? 41 : IsEmulated() ? 301 : 1101;
  const int64_t out = 67;
  const int64_t rows = IsReference() ? 5 : internal::kProductRows + 39;
  for (DType x_dtype : kXTypes) {
    for (DType dtype : kWeightTypes) {
      const PackedMatrix w(Encode(RandomNormal(static_cast<size_t>(in * out), 9), dtype), dtype,
                           out, in);
      const auto values = RandomNormal(static_cast<size_t>(rows * in), 7);
      const ActivationRows x(values, rows, x_dtype);
      // Row by row: the one answer.
      std::vector<float> alone;
      for (int64_t r = 0; r < rows; ++r) {
        const auto one = Multiply(x.Some(r, 1), w.matrix(), GetParam());
        alone.insert(alone.end(), one.begin(), one.end());
      }
      const auto part = [&](int64_t first, int64_t count) {
        const auto at = [&](int64_t row) { return alone.begin() + row * out; };
        return BitsOf(std::vector<float>(at(first), at(first + count)));
      };
      ASSERT_EQ(BitsOf(Multiply(x, w.matrix(), threaded)), part(0, rows));
      // As many as kernels for GPUs take in one pass.
      const int64_t pass = std::min<int64_t>(rows, 61);
      ASSERT_EQ(BitsOf(Multiply(x.Some(3, pass - 3), w.matrix(), GetParam())), part(3, pass - 3));
      for (int64_t count = 2; count <= std::min<int64_t>(rows, 34); count += IsEmulated() ? 5 : 1) {
        const int64_t first = count * 5 % (rows - count + 1);
        ASSERT_EQ(BitsOf(Multiply(x.Some(first, count), w.matrix(), GetParam())),
                  part(first, count))
            << Name(x_dtype) << " by " << Name(dtype) << ", rows " << first << " to "
            << first + count;
      }
      // The same row beside others, at every place of a batch of 40.
      const int64_t batch = std::min<int64_t>(rows, 40);
      for (int64_t place = 0; place < batch; place += IsEmulated() ? 13 : 1) {
        auto others = RandomNormal(static_cast<size_t>(batch * in), static_cast<uint32_t>(place));
        std::copy_n(values.begin(), in, others.begin() + place * in);
        const auto y = Multiply(ActivationRows(others, batch, x_dtype), w.matrix(), GetParam());
        const auto at = y.begin() + place * out;
        ASSERT_EQ(BitsOf(std::vector<float>(at, at + out)), part(0, 1)) << "at place " << place;
      }
    }
  }
}

TEST(GemmClassTest, Avx2AndAvx512AgreeBitForBit) {
  if (BestIsa() < Isa::kAvx512) GTEST_SKIP() << "no AVX-512 here";
  for (DType dtype : kWeightTypes) {
    const PackedMatrix w(Encode(RandomNormal(203 * 67, 9), dtype), dtype, 67, 203);
    for (DType x_dtype : kXTypes) {
      const ActivationRows x(RandomNormal(7 * 203, 7), 7, x_dtype);
      EXPECT_EQ(BitsOf(Multiply(x, w.matrix(), {.isa = Isa::kAvx2})),
                BitsOf(Multiply(x, w.matrix(), {.isa = Isa::kAvx512})));
    }
  }
}

// What a wider instruction set does not multiply itself it leaves to the narrower body.
TEST_P(GemmTest, OnlyBf16ByBf16HasBodiesOfItsOwn) {
  if (GetParam().isa <= Isa::kAvx512) GTEST_SKIP() << "has one body for all types";
  const ActivationRows x(RandomNormal(7 * 203, 7), 7, DType::kF32);
  const PackedMatrix w(Encode(RandomNormal(203 * 67, 9), DType::kBf16), DType::kBf16, 67, 203);
  EXPECT_EQ(BitsOf(Multiply(x, w.matrix(), GetParam())),
            BitsOf(Multiply(x, w.matrix(), {.isa = Isa::kAvx512})));
}

TEST_P(GemmTest, ABadRowDoesNotSpoilItsNeighbours) {
  const int64_t in = 20, out = 5, rows = 37;
  for (DType x_dtype : kXTypes) {
    for (DType dtype : kWeightTypes) {
      const PackedMatrix w(Encode(RandomNormal(in * out, 9), dtype), dtype, out, in);
      for (int64_t bad = 0; bad < rows; bad += IsEmulated() ? 12 : 1) {
        auto values = RandomNormal(static_cast<size_t>(rows * in), 7);
        values[static_cast<size_t>(bad * in + 5)] = std::numeric_limits<float>::quiet_NaN();
        const auto y = Multiply(ActivationRows(values, rows, x_dtype), w.matrix(), GetParam());
        for (size_t i = 0; i < y.size(); ++i) {
          ASSERT_EQ(std::isnan(y[i]), static_cast<int64_t>(i) / out == bad) << i;
        }
      }
    }
  }
}

TEST_P(GemmTest, CountsEachWeightOnce) {
  if (IsReference()) GTEST_SKIP() << "counts nothing";
  const int64_t in = 512, out = 400;
  const PackedMatrix w(Encode(RandomNormal(in * out, 9), DType::kBf16), DType::kBf16, out, in);
  for (int64_t rows : {1, 5, 200}) {
    std::atomic<int64_t> bytes = 0;
    ExecContext ctx = GetParam();
    ctx.streamed_bytes = &bytes;
    const auto values = RandomNormal(static_cast<size_t>(rows * in), 7);
    Multiply(ActivationRows(values, rows, DType::kBf16), w.matrix(), ctx);
    EXPECT_EQ(bytes.load(), PackedBytes(out, in, DType::kBf16)) << rows;
  }
}

TEST_P(GemmTest, RefusesShapesItCannotRun) {
  const GemmArgs good = {.w = {.out = 4, .in = 4}, .rows = 0, .x_stride = 4, .y_stride = 4};
  auto code = [](const GemmArgs& args) { return Gemm(args, GetParam()).code(); };
  EXPECT_EQ(code(good), absl::StatusCode::kOk);
  for (auto member : {&GemmArgs::x_stride, &GemmArgs::y_stride}) {
    GemmArgs bad = good;
    bad.*member = 3;
    EXPECT_EQ(code(bad), absl::StatusCode::kInvalidArgument);
  }
  for (auto member : {&Matrix::in, &Matrix::out}) {
    GemmArgs bad = good;
    bad.w.*member = 0;
    EXPECT_EQ(code(bad), absl::StatusCode::kInvalidArgument);
  }
  GemmArgs bad = good;
  bad.x_dtype = DType::kF16;
  EXPECT_EQ(code(bad), absl::StatusCode::kInvalidArgument);
  bad.x_dtype = DType::kBf16;  // Rows need room for the zeros behind them.
  EXPECT_EQ(code(bad), absl::StatusCode::kInvalidArgument);
  bad.x_stride = 32;
  EXPECT_EQ(code(bad), absl::StatusCode::kOk);
}

TEST(ActivationStrideTest, LeavesRoomForZerosAndAvoidsWholePages) {
  EXPECT_EQ(ActivationStride(1, DType::kBf16), 32);
  EXPECT_EQ(ActivationStride(33, DType::kF32), 64);
  EXPECT_EQ(ActivationStride(2048, DType::kBf16), 2048 + 32);
  EXPECT_EQ(ActivationStride(1024, DType::kBf16), 1024);
  EXPECT_EQ(ActivationStride(1024, DType::kF32), 1024 + 32);
}

INSTANTIATE_TEST_SUITE_P(Contexts, GemmTest, ::testing::ValuesIn(AllContextsAndCuda()),
                         ContextParamName);

}  // namespace
}  // namespace lynx::kernels
