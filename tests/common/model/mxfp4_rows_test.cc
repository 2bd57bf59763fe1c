#include "common/model/mxfp4_rows.h"

#include <cmath>
#include <limits>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/core/float_convert.h"

namespace lynx::model {
namespace {

// The codes of e2m1 as the OCP microscaling specification lists them.
constexpr double kCodes[16] = {0.0,  0.5,  1.0,  1.5,  2.0,  3.0,  4.0,  6.0,
                               -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0};

TEST(Mxfp4Test, EveryCodeOfEveryScaleIsExact) {
  for (int scale = 0; scale <= kMaxMxfp4Scale; ++scale) {
    for (int code = 0; code < 16; ++code) {
      const float got = kernels::Bf16ToF32(Mxfp4ToBf16(code, static_cast<std::byte>(scale)));
      EXPECT_EQ(double{got}, std::ldexp(kCodes[code], scale - 127)) << code << " " << scale;
      EXPECT_EQ(std::signbit(got), code >= 8) << code << " " << scale;
    }
  }
}

// What bounds the scales: one more, and a code is too large for bf16 and for float32.
TEST(Mxfp4Test, ScalesThatLeaveTheRangeMeanNoNumber) {
  constexpr double kLargest = std::numeric_limits<float>::max();
  EXPECT_LT(std::ldexp(kCodes[7], kMaxMxfp4Scale - 127), kLargest);
  EXPECT_GT(std::ldexp(kCodes[7], kMaxMxfp4Scale + 1 - 127), kLargest);
  for (int scale = kMaxMxfp4Scale + 1; scale < 256; ++scale) {
    for (int code = 0; code < 16; ++code) {
      const uint16_t got = Mxfp4ToBf16(code, static_cast<std::byte>(scale));
      EXPECT_TRUE(std::isnan(kernels::Bf16ToF32(got))) << code << " " << scale;
    }
  }
}

// 7 rows of two blocks, all bytes and scales unlike their neighbours.
TEST(Mxfp4RowsTest, EveryWeightIsItsCodeTimesTheScaleOfItsBlock) {
  constexpr int64_t kRows = 7, kWidth = 64;
  std::vector<std::byte> codes;
  for (int i = 0; i < kRows * kWidth / 2; ++i) codes.push_back(static_cast<std::byte>(7 * i + 3));
  std::vector<std::byte> scales;
  for (int i = 0; i < kRows * 2; ++i) scales.push_back(static_cast<std::byte>(120 + i));
  const Mxfp4Matrix matrix{.codes = codes, .scales = scales, .width = kWidth};
  const auto want = [&](int64_t row, int64_t column) {
    const auto at = static_cast<size_t>(row * kWidth + column);
    const auto byte = static_cast<int>(codes[at / 2]);
    const int code = at % 2 == 0 ? byte % 16 : byte / 16;
    return std::ldexp(kCodes[code], static_cast<int>(scales[at / 32]) - 127);
  };
  struct Part {
    int64_t first, stride, count;
  };
  for (const Part& part : {Part{0, 1, 7}, {3, 1, 2}, {0, 2, 4}, {1, 2, 3}}) {
    const RowSource rows = Mxfp4Rows(matrix, part.first, part.stride, part.count);
    EXPECT_EQ(rows.dtype, DType::kBf16);
    EXPECT_EQ(rows.rows, part.count);
    EXPECT_EQ(rows.width, kWidth);
    ASSERT_EQ(rows.memory.size(), 2u);
    EXPECT_EQ(rows.memory[0].data(), codes.data());
    EXPECT_EQ(rows.memory[1].data(), scales.data());
    std::vector<uint16_t> scratch(kWidth);
    for (int64_t row = 0; row < part.count; ++row) {
      const auto* got = static_cast<const uint16_t*>(rows.read(row, scratch.data()));
      for (int64_t i = 0; i < kWidth; ++i) {
        EXPECT_EQ(double{kernels::Bf16ToF32(got[i])}, want(part.first + row * part.stride, i))
            << row << " " << i;
      }
    }
  }
}

}  // namespace
}  // namespace lynx::model
