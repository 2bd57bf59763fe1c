#include "common/model/fp8_rows.h"

#include <algorithm>
#include <array>
#include <limits>

#include "kernels/core/float_convert.h"

namespace lynx::model {
namespace {

constexpr float Decode(int bits) {
  const int exponent = bits >> 3 & 15;
  const int mantissa = bits & 7;
  if (exponent == 15 && mantissa == 7) return std::numeric_limits<float>::quiet_NaN();
  const int significand = exponent == 0 ? mantissa : (mantissa + 8) << (exponent - 1);
  const float size = static_cast<float>(significand) / 512;
  return (bits & 128) != 0 ? -size : size;
}

constexpr std::array<float, 256> kValues = [] {
  std::array<float, 256> values = {};
  for (int bits = 0; bits < 256; ++bits) values[static_cast<size_t>(bits)] = Decode(bits);
  return values;
}();

const float* ScalesOf(const Fp8Matrix& matrix, int64_t row) {
  const int64_t blocks = (matrix.width + matrix.block_width - 1) / matrix.block_width;
  return matrix.scales + row / matrix.block_rows * blocks;
}

uint16_t Weight(std::byte value, float scale) {
  return kernels::F32ToBf16(E4m3ToF32(value) * scale);
}

std::vector<std::span<const std::byte>> Memory(const Fp8Matrix& matrix, int64_t first,
                                               int64_t count) {
  return {matrix.values.subspan(static_cast<size_t>(first * matrix.width),
                                static_cast<size_t>(count * matrix.width))};
}

}  // namespace

float E4m3ToF32(std::byte value) { return kValues[static_cast<size_t>(value)]; }

RowSource Fp8Rows(const Fp8Matrix& matrix, int64_t first, int64_t count) {
  return {.dtype = DType::kBf16,
          .rows = count,
          .width = matrix.width,
          .read = [=](int64_t row, void* scratch) -> const void* {
            const std::byte* from = matrix.values.data() + (first + row) * matrix.width;
            const float* scale = ScalesOf(matrix, first + row);
            auto* to = static_cast<uint16_t*>(scratch);
            for (int64_t begin = 0; begin < matrix.width; begin += matrix.block_width, ++scale) {
              const int64_t end = std::min(matrix.width, begin + matrix.block_width);
              for (int64_t i = begin; i < end; ++i) to[i] = Weight(from[i], *scale);
            }
            return scratch;
          },
          .memory = Memory(matrix, first, count)};
}

RowSource Fp8Columns(const Fp8Matrix& matrix, int64_t first, int64_t count) {
  return {.dtype = DType::kBf16,
          .rows = matrix.width,
          .width = count,
          .read = [=](int64_t column, void* scratch) -> const void* {
            const int64_t block = column / matrix.block_width;
            auto* to = static_cast<uint16_t*>(scratch);
            for (int64_t i = 0; i < count; ++i) {
              const std::byte* row = matrix.values.data() + (first + i) * matrix.width;
              to[i] = Weight(row[column], ScalesOf(matrix, first + i)[block]);
            }
            return scratch;
          },
          .memory = Memory(matrix, first, count)};
}

}  // namespace lynx::model
