#include "kernels/gemm/packed_matrix.h"

#include <algorithm>
#include <cstring>

#include "kernels/core/float_convert.h"

namespace lynx::kernels {
namespace {

constexpr int64_t kHalfRows = kPanelRows / 2;
constexpr int64_t kPairs = kPanelDepth / 2;
constexpr int64_t kBlock = kPanelRows * kPanelDepth;  // Elements of a panel from 32 inputs.

// Where bf16 weight [row, 0] of a panel is, in elements. Its next pair follows kPanelRows later.
int64_t FirstPair(int64_t row) { return row / kHalfRows * kBlock / 2 + row % kHalfRows * 2; }

void PackBf16(const void* const rows[kPanelRows], int64_t in, uint16_t* panel) {
  for (int64_t begin = 0; begin < in; begin += kPanelDepth, panel += kBlock) {
    const int64_t depth = std::min(in - begin, kPanelDepth);
    std::memset(panel, 0, kBlock * sizeof(uint16_t));
    for (int64_t r = 0; r < kPanelRows; ++r) {
      if (rows[r] == nullptr) continue;
      const uint16_t* from = static_cast<const uint16_t*>(rows[r]) + begin;
      uint16_t* to = panel + FirstPair(r);
      for (int64_t i = 0; i + 1 < depth; i += 2, to += kPanelRows) std::memcpy(to, from + i, 4);
      if (depth % 2 != 0) *to = from[depth - 1];
    }
  }
}

template <typename T>
void PackColumns(const void* const rows[kPanelRows], int64_t in, T* panel) {
  for (int64_t r = 0; r < kPanelRows; ++r) {
    const T* from = static_cast<const T*>(rows[r]);
    for (int64_t i = 0; i < in; ++i) panel[i * kPanelRows + r] = from == nullptr ? T{} : from[i];
  }
}

// The first weight of the panel that holds `row`.
template <typename T>
const T* PanelOf(const Matrix& matrix, int64_t row) {
  return static_cast<const T*>(matrix.data) +
         row / kPanelRows * kPanelRows * PaddedDepth(matrix.in, matrix.dtype);
}

}  // namespace

int64_t ToPanelDepth(int64_t in) { return (in + kPanelDepth - 1) / kPanelDepth * kPanelDepth; }

int64_t PaddedDepth(int64_t in, DType dtype) {
  return dtype == DType::kBf16 ? ToPanelDepth(in) : in;
}

int64_t PanelCount(int64_t out) { return (out + kPanelRows - 1) / kPanelRows; }

int64_t PanelBytes(int64_t in, DType dtype) {
  return kPanelRows * PaddedDepth(in, dtype) * static_cast<int64_t>(SizeOf(dtype));
}

int64_t PackedBytes(int64_t out, int64_t in, DType dtype) {
  return PanelCount(out) * PanelBytes(in, dtype);
}

void PackPanel(const void* const rows[kPanelRows], DType dtype, int64_t in, void* panel) {
  switch (dtype) {
    case DType::kF32:
      return PackColumns(rows, in, static_cast<float*>(panel));
    case DType::kBf16:
      return PackBf16(rows, in, static_cast<uint16_t*>(panel));
    case DType::kF16:
      return PackColumns(rows, in, static_cast<uint16_t*>(panel));
  }
}

float WeightAt(const Matrix& matrix, int64_t row, int64_t column) {
  const int64_t at = column * kPanelRows + row % kPanelRows;
  switch (matrix.dtype) {
    case DType::kF32:
      return PanelOf<float>(matrix, row)[at];
    case DType::kBf16:
      return Bf16ToF32(PanelOf<uint16_t>(
          matrix, row)[column / kPanelDepth * kBlock + FirstPair(row % kPanelRows) +
                       column % kPanelDepth / 2 * kPanelRows + column % 2]);
    case DType::kF16:
      return F16ToF32(PanelOf<uint16_t>(matrix, row)[at]);
  }
  return 0;
}

void UnpackRow(const Matrix& matrix, int64_t row, float* to) {
  if (matrix.dtype != DType::kBf16) {
    for (int64_t i = 0; i < matrix.in; ++i) to[i] = WeightAt(matrix, row, i);
    return;
  }
  const uint16_t* from = PanelOf<uint16_t>(matrix, row) + FirstPair(row % kPanelRows);
  for (int64_t i = 0; i < matrix.in; i += kPanelDepth, from += kBlock) {
    const int64_t depth = std::min(matrix.in - i, kPanelDepth);
    for (int64_t j = 0; j < depth; ++j) to[i + j] = Bf16ToF32(from[j / 2 * kPanelRows + j % 2]);
  }
}

}  // namespace lynx::kernels
