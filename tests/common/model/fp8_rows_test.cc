#include "common/model/fp8_rows.h"

#include <cmath>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/core/float_convert.h"

namespace lynx::model {
namespace {

TEST(E4m3Test, CodesMeanWhatTheFormatSays) {
  const auto value = [](int bits) { return E4m3ToF32(static_cast<std::byte>(bits)); };
  EXPECT_EQ(value(0x00), 0.0f);
  EXPECT_EQ(value(0x01), std::ldexp(1.0f, -9));  // The smallest; these have no hidden bit.
  EXPECT_EQ(value(0x07), std::ldexp(7.0f, -9));
  EXPECT_EQ(value(0x08), std::ldexp(1.0f, -6));
  EXPECT_EQ(value(0x38), 1.0f);
  EXPECT_EQ(value(0x39), 1.125f);
  EXPECT_EQ(value(0x7e), 448.0f);
  EXPECT_TRUE(std::isnan(value(0x7f)));
  EXPECT_TRUE(std::isnan(value(0xff)));
  for (int bits = 0; bits < 127; ++bits) EXPECT_EQ(value(bits + 128), -value(bits)) << bits;
  for (int bits = 1; bits < 127; ++bits) EXPECT_GT(value(bits), value(bits - 1)) << bits;
}

// 5 rows of 7 in blocks of 2 by 3: the last blocks are cut off on both sides.
TEST(Fp8RowsTest, EveryWeightIsItsValueTimesTheScaleOfItsBlock) {
  constexpr int64_t kRows = 5, kWidth = 7;
  std::vector<std::byte> values;
  for (int i = 0; i < kRows * kWidth; ++i) values.push_back(static_cast<std::byte>(3 * i + 20));
  std::vector<float> scales;
  for (int i = 0; i < 3 * 3; ++i) scales.push_back(0.37f * static_cast<float>(i + 1));
  const Fp8Matrix matrix{.values = values,
                         .scales = scales.data(),
                         .width = kWidth,
                         .block_rows = 2,
                         .block_width = 3};
  const auto want = [&](int64_t row, int64_t column) {
    return kernels::F32ToBf16(E4m3ToF32(values[static_cast<size_t>(row * kWidth + column)]) *
                              scales[static_cast<size_t>(row / 2 * 3 + column / 3)]);
  };
  for (const auto& [first, count] : {std::pair{0, 5}, {1, 3}, {4, 1}}) {
    const RowSource rows = Fp8Rows(matrix, first, count);
    const RowSource columns = Fp8Columns(matrix, first, count);
    EXPECT_EQ(rows.dtype, DType::kBf16);
    EXPECT_EQ(rows.rows, count);
    EXPECT_EQ(rows.width, kWidth);
    EXPECT_EQ(columns.rows, kWidth);
    EXPECT_EQ(columns.width, count);
    EXPECT_EQ(rows.memory.at(0).data(), values.data() + first * kWidth);
    EXPECT_EQ(rows.memory.at(0).size(), static_cast<size_t>(count * kWidth));
    std::vector<uint16_t> scratch(kWidth);
    for (int64_t row = 0; row < count; ++row) {
      const auto* got = static_cast<const uint16_t*>(rows.read(row, scratch.data()));
      for (int64_t i = 0; i < kWidth; ++i) EXPECT_EQ(got[i], want(first + row, i));
    }
    for (int64_t column = 0; column < kWidth; ++column) {
      const auto* got = static_cast<const uint16_t*>(columns.read(column, scratch.data()));
      for (int64_t i = 0; i < count; ++i) EXPECT_EQ(got[i], want(first + i, column));
    }
  }
}

}  // namespace
}  // namespace lynx::model
