#pragma once

// Packed weights for tests of kernels.

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "common/base/dtype.h"
#include "kernels/core/float_convert.h"
#include "kernels/gemm/packed_matrix.h"

namespace lynx::testing {

// Bytes from a 64-byte boundary on.
class AlignedBytes {
 public:
  AlignedBytes(size_t size, std::byte fill) : bytes_(size + 64, fill) {}
  std::byte* data() const {
    const auto at = reinterpret_cast<uintptr_t>(bytes_.data());
    return reinterpret_cast<std::byte*>((at + 63) / 64 * 64);
  }

 private:
  mutable std::vector<std::byte> bytes_;
};

// A matrix [out, in], given as a file holds it, packed. What is not written stays `fill`.
class PackedMatrix {
 public:
  PackedMatrix(const std::vector<std::byte>& file, DType dtype, int64_t out, int64_t in,
               std::byte fill = std::byte{0})
      : bytes_(static_cast<size_t>(kernels::PackedBytes(out, in, dtype)), fill),
        matrix_{.data = bytes_.data(), .dtype = dtype, .out = out, .in = in} {
    for (int64_t first = 0; first < out; first += kernels::kPanelRows) {
      const void* rows[kernels::kPanelRows] = {};
      for (int64_t r = first; r < out && r < first + kernels::kPanelRows; ++r) {
        rows[r - first] = file.data() + static_cast<size_t>(r * in) * SizeOf(dtype);
      }
      const int64_t panel = first / kernels::kPanelRows;
      kernels::PackPanel(rows, dtype, in, bytes_.data() + panel * kernels::PanelBytes(in, dtype));
    }
  }
  PackedMatrix(const PackedMatrix&) = delete;
  PackedMatrix& operator=(const PackedMatrix&) = delete;

  const kernels::Matrix& matrix() const { return matrix_; }

 private:
  AlignedBytes bytes_;
  kernels::Matrix matrix_;
};

// The values of elements as a file holds them.
inline std::vector<float> Decode(const std::vector<std::byte>& bytes, DType dtype) {
  std::vector<float> values(bytes.size() / SizeOf(dtype));
  for (size_t i = 0; i < values.size(); ++i) {
    uint16_t half;
    switch (dtype) {
      case DType::kF32:
        std::memcpy(&values[i], &bytes[i * 4], 4);
        break;
      case DType::kBf16:
        std::memcpy(&half, &bytes[i * 2], 2);
        values[i] = kernels::Bf16ToF32(half);
        break;
      case DType::kF16:
        std::memcpy(&half, &bytes[i * 2], 2);
        values[i] = kernels::F16ToF32(half);
        break;
    }
  }
  return values;
}

}  // namespace lynx::testing
