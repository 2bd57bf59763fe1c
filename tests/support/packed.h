#pragma once

// Packed weights for tests of kernels.

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "common/base/dtype.h"
#include "kernels/core/float_convert.h"
#include "kernels/gemm/packed_matrix.h"
#include "tests/support/kernel_test.h"

namespace lynx::testing {

// Bytes from a 64-byte boundary on.
class AlignedBytes {
 public:
  AlignedBytes(size_t size, std::byte fill) : lines_((size + 63) / 64) {
    std::memset(data(), static_cast<int>(fill), lines_.size() * 64);
  }
  std::byte* data() { return reinterpret_cast<std::byte*>(lines_.data()); }
  const std::byte* data() const { return reinterpret_cast<const std::byte*>(lines_.data()); }

 private:
  struct alignas(64) Line {
    std::byte bytes[64];
  };
  std::vector<Line> lines_;
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

// Rows of activations in f32 or bf16, as kernels take them: bf16 rows go on with zeros.
class ActivationRows {
 public:
  // values: [rows, width], rounded to dtype. `gap` widens the stride.
  ActivationRows(const std::vector<float>& values, int64_t rows, DType dtype, int64_t gap = 0)
      : rows_(rows),
        width_(static_cast<int64_t>(values.size()) / rows),
        stride_((width_ + 31) / 32 * 32 + gap),
        dtype_(dtype),
        bytes_(static_cast<size_t>(rows_ * stride_) * SizeOf(dtype), std::byte{0}) {
    for (int64_t r = 0; r < rows; ++r) {
      const auto first = values.begin() + r * width_;
      const auto row = Encode(std::vector<float>(first, first + width_), dtype);
      std::memcpy(bytes_.data() + Offset(r), row.data(), row.size());
    }
  }

  // Rows [first, first + count) of this.
  ActivationRows Some(int64_t first, int64_t count) const {
    ActivationRows some = *this;
    some.first_ += first;
    some.rows_ = count;
    return some;
  }

  float At(int64_t row, int64_t column) const {
    const std::byte* at = bytes_.data() + Offset(row + first_);
    if (dtype_ == DType::kF32) return reinterpret_cast<const float*>(at)[column];
    return kernels::Bf16ToF32(reinterpret_cast<const uint16_t*>(at)[column]);
  }

  const void* data() const { return bytes_.data() + Offset(first_); }
  int64_t rows() const { return rows_; }
  int64_t stride() const { return stride_; }
  DType dtype() const { return dtype_; }

 private:
  int64_t Offset(int64_t row) const { return row * stride_ * static_cast<int64_t>(SizeOf(dtype_)); }

  int64_t first_ = 0;
  int64_t rows_;
  int64_t width_;
  int64_t stride_;
  DType dtype_;
  AlignedBytes bytes_;
};

}  // namespace lynx::testing
