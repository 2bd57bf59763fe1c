#include "common/model/mxfp4_rows.h"

#include <array>
#include <bit>

#include "common/base/check.h"

namespace lynx::model {
namespace {

constexpr float kMagnitudes[8] = {0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f};
constexpr uint16_t kNan = 0x7fc0;

constexpr float PowerOf(int scale) {
  const int bits = scale == 0 ? 1 << 22 : scale << 23;  // 2^-127 has no hidden bit.
  return std::bit_cast<float>(bits);
}

// A bit of mantissa, and denormal numbers down to 2^-133: bf16 cuts nothing off.
constexpr uint16_t Weight(int code, int scale) {
  if (scale > kMaxMxfp4Scale) return kNan;
  const float size = kMagnitudes[code & 7] * PowerOf(scale);
  return static_cast<uint16_t>(std::bit_cast<uint32_t>(code < 8 ? size : -size) >> 16);
}

constexpr std::array<std::array<uint16_t, 16>, 256> kWeights = [] {
  std::array<std::array<uint16_t, 16>, 256> weights = {};
  for (int scale = 0; scale < 256; ++scale) {
    for (int code = 0; code < 16; ++code) {
      weights[static_cast<size_t>(scale)][static_cast<size_t>(code)] = Weight(code, scale);
    }
  }
  return weights;
}();

}  // namespace

uint16_t Mxfp4ToBf16(int code, std::byte scale) {
  return kWeights[static_cast<size_t>(scale)][static_cast<size_t>(code)];
}

RowSource Mxfp4Rows(const Mxfp4Matrix& matrix, int64_t first, int64_t stride, int64_t count) {
  LYNX_CHECK(matrix.width % kMxfp4Block == 0);
  return {.dtype = DType::kBf16,
          .rows = count,
          .width = matrix.width,
          .read = [=](int64_t row, void* scratch) -> const void* {
            const int64_t blocks = matrix.width / kMxfp4Block;
            const int64_t at = (first + row * stride) * blocks;
            const std::byte* code = matrix.codes.data() + at * kMxfp4Block / 2;
            const std::byte* scale = matrix.scales.data() + at;
            auto* to = static_cast<uint16_t*>(scratch);
            for (const std::byte* end = scale + blocks; scale != end; ++scale) {
              const auto& weights = kWeights[static_cast<size_t>(*scale)];
              for (int64_t i = 0; i < kMxfp4Block; i += 2, ++code, to += 2) {
                to[0] = weights[static_cast<size_t>(*code & std::byte{15})];
                to[1] = weights[static_cast<size_t>(*code >> 4)];
              }
            }
            return scratch;
          },
          .memory = {matrix.codes, matrix.scales}};
}

}  // namespace lynx::model
