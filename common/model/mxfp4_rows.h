#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "common/model/row_source.h"

namespace lynx::model {

// Weights of a row that share a scale.
inline constexpr int64_t kMxfp4Block = 32;
// Scales are e8m0: 2^(scale - 127). Above this one some codes leave the range of bf16, and of
// float32, and 255 is no number by the format.
inline constexpr int kMaxMxfp4Scale = 252;

// A matrix in the OCP microscaling format MXFP4: codes of 4 bits (e2m1: sign, 2 bits of exponent,
// 1 of mantissa), two to a byte, the first in the lower half; value times scale is the weight.
struct Mxfp4Matrix {
  std::span<const std::byte> codes;   // [rows, width / 2]
  std::span<const std::byte> scales;  // [rows, width / kMxfp4Block], none above kMaxMxfp4Scale
  int64_t width = 0;                  // A multiple of kMxfp4Block.
};

// The weight that `code`, in [0, 16), stands for, in bf16 and exact; NaN above kMaxMxfp4Scale.
uint16_t Mxfp4ToBf16(int code, std::byte scale);

// `count` of its rows from `first` on, each `stride` behind the one before, in bf16.
RowSource Mxfp4Rows(const Mxfp4Matrix& matrix, int64_t first, int64_t stride, int64_t count);

}  // namespace lynx::model
