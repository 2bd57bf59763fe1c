#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "common/model/row_source.h"

namespace lynx::model {

// A matrix of e4m3 values (a byte each: sign, 4 bits of exponent, 3 of mantissa, no infinities) in
// blocks of one scale: value times scale is the weight.
struct Fp8Matrix {
  std::span<const std::byte> values;  // [rows, width]
  const float* scales = nullptr;      // [rows / block_rows, width / block_width], rounded up
  int64_t width = 0;
  int64_t block_rows = 0;
  int64_t block_width = 0;
};

float E4m3ToF32(std::byte value);

// Its rows from `first` on, in bf16; and as many of them transposed: `count` columns.
RowSource Fp8Rows(const Fp8Matrix& matrix, int64_t first, int64_t count);
RowSource Fp8Columns(const Fp8Matrix& matrix, int64_t first, int64_t count);

}  // namespace lynx::model
