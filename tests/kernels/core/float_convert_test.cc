#include "kernels/core/float_convert.h"

#include <bit>
#include <cmath>
#include <limits>

#include "gtest/gtest.h"

namespace lynx::kernels {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

TEST(FloatConvertTest, SixteenBitValuesSurviveTheRoundTrip) {
  for (uint32_t i = 0; i < 1 << 16; ++i) {
    const auto bits = static_cast<uint16_t>(i);
    if (std::isnan(F16ToF32(bits))) {
      EXPECT_TRUE(std::isnan(F16ToF32(F32ToF16(F16ToF32(bits)))));
    } else {
      ASSERT_EQ(F32ToF16(F16ToF32(bits)), bits);
    }
    if (std::isnan(Bf16ToF32(bits))) {
      EXPECT_TRUE(std::isnan(Bf16ToF32(F32ToBf16(Bf16ToF32(bits)))));
    } else {
      ASSERT_EQ(F32ToBf16(Bf16ToF32(bits)), bits);
    }
  }
}

TEST(FloatConvertTest, KnownHalfValues) {
  EXPECT_EQ(F16ToF32(0x3c00), 1.0f);
  EXPECT_EQ(F16ToF32(0xc000), -2.0f);
  EXPECT_EQ(F16ToF32(0x7bff), 65504.0f);
  EXPECT_EQ(F16ToF32(0x0001), 0x1p-24f);
  EXPECT_EQ(F16ToF32(0x7c00), kInf);
}

// Every pair of neighbouring finite halves, at and beside the middle between them.
TEST(FloatConvertTest, HalvesRoundToNearestTiesToEven) {
  for (uint16_t low = 0; low < 0x7bff; ++low) {
    const auto high = static_cast<uint16_t>(low + 1);
    const float middle = (F16ToF32(low) + F16ToF32(high)) / 2;  // Exact in float32.
    ASSERT_EQ(F32ToF16(middle), low % 2 == 0 ? low : high);
    ASSERT_EQ(F32ToF16(std::nextafter(middle, 0.0f)), low);
    ASSERT_EQ(F32ToF16(std::nextafter(middle, kInf)), high);
    ASSERT_EQ(F32ToF16(-middle), (low % 2 == 0 ? low : high) | 0x8000);
  }
  EXPECT_EQ(F32ToF16(65519.0f), 0x7bff);
  EXPECT_EQ(F32ToF16(65520.0f), 0x7c00);
}

TEST(FloatConvertTest, Bf16RoundsToNearestTiesToEven) {
  for (uint32_t low = 0; low < 0x7f7f; ++low) {
    const auto middle = std::bit_cast<float>(low << 16 | 0x8000);
    ASSERT_EQ(F32ToBf16(middle), low % 2 == 0 ? low : low + 1);
    ASSERT_EQ(F32ToBf16(std::nextafter(middle, 0.0f)), low);
    ASSERT_EQ(F32ToBf16(std::nextafter(middle, kInf)), low + 1);
  }
}

}  // namespace
}  // namespace lynx::kernels
