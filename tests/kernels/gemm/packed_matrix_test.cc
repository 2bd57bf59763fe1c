#include "kernels/gemm/packed_matrix.h"

#include <cstring>
#include <vector>

#include "gtest/gtest.h"
#include "tests/support/kernel_test.h"
#include "tests/support/packed.h"

namespace lynx::kernels {
namespace {

using ::lynx::testing::Decode;
using ::lynx::testing::Encode;
using ::lynx::testing::PackedMatrix;
using ::lynx::testing::RandomNormal;

TEST(PackedMatrixTest, BytesCountThePadding) {
  EXPECT_EQ(PanelBytes(32, DType::kBf16), 2048);
  EXPECT_EQ(PanelBytes(33, DType::kBf16), 4096);
  EXPECT_EQ(PanelBytes(33, DType::kF16), 33 * 64);
  EXPECT_EQ(PanelBytes(33, DType::kF32), 33 * 128);
  EXPECT_EQ(PackedBytes(32, 64, DType::kBf16), 4096);
  EXPECT_EQ(PackedBytes(33, 64, DType::kBf16), 8192);
}

// The order of instruction operands, spelled out: a product would not notice a layout that differs
// from it in the same way as its packing.
TEST(PackedMatrixTest, Bf16LiesAsTilesOfPairs) {
  constexpr int64_t kIn = 64;
  std::vector<uint16_t> weights(kPanelRows * kIn);
  for (size_t i = 0; i < weights.size(); ++i) weights[i] = static_cast<uint16_t>(i);
  const void* rows[kPanelRows];
  for (int64_t r = 0; r < kPanelRows; ++r) rows[r] = &weights[static_cast<size_t>(r * kIn)];
  std::vector<uint16_t> panel(kPanelRows * kIn);
  PackPanel(rows, DType::kBf16, kIn, panel.data());
  size_t at = 0;
  for (int64_t block = 0; block < 2; ++block) {
    for (int64_t half = 0; half < 2; ++half) {
      for (int64_t pair = 0; pair < 16; ++pair) {
        for (int64_t output = 0; output < 16; ++output) {
          for (int64_t of_pair = 0; of_pair < 2; ++of_pair, ++at) {
            const int64_t row = half * 16 + output;
            const int64_t column = block * 32 + pair * 2 + of_pair;
            ASSERT_EQ(panel[at], row * kIn + column) << at;
          }
        }
      }
    }
  }
}

TEST(PackedMatrixTest, EveryWeightComesBack) {
  for (DType dtype : {DType::kF32, DType::kBf16, DType::kF16}) {
    for (int64_t in : {1, 2, 15, 31, 32, 33, 64, 95}) {
      for (int64_t out : {1, 15, 16, 17, 32, 33, 70}) {
        const auto file = Encode(RandomNormal(static_cast<size_t>(in * out), 7), dtype);
        const std::vector<float> values = Decode(file, dtype);
        const PackedMatrix packed(file, dtype, out, in);
        std::vector<float> row(static_cast<size_t>(in));
        for (int64_t r = 0; r < out; ++r) {
          UnpackRow(packed.matrix(), r, row.data());
          for (int64_t i = 0; i < in; ++i) {
            const float want = values[static_cast<size_t>(r * in + i)];
            ASSERT_EQ(row[static_cast<size_t>(i)], want)
                << Name(dtype) << " [" << out << ", " << in << "] at " << r << ", " << i;
            ASSERT_EQ(WeightAt(packed.matrix(), r, i), want);
          }
        }
      }
    }
  }
}

TEST(PackedMatrixTest, PaddingIsZero) {
  for (DType dtype : {DType::kF32, DType::kBf16, DType::kF16}) {
    for (int64_t in : {1, 31, 33}) {
      for (int64_t out : {1, 31, 33}) {
        const auto bytes = static_cast<size_t>(PackedBytes(out, in, dtype));
        const std::vector<float> ones(static_cast<size_t>(out * in), 1.0f);
        const PackedMatrix packed(Encode(ones, dtype), dtype, out, in, /*fill=*/std::byte{0xff});
        std::vector<std::byte> all(bytes);
        std::memcpy(all.data(), packed.matrix().data, bytes);
        float sum = 0;
        for (float value : Decode(all, dtype)) sum += value;
        EXPECT_EQ(sum, static_cast<float>(out * in)) << Name(dtype) << " " << out << " " << in;
      }
    }
  }
}

}  // namespace
}  // namespace lynx::kernels
