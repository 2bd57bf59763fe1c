#pragma once

#include <cstdint>

#include "common/base/dtype.h"

namespace lynx::kernels {

// Outputs of one panel, and the multiple that `in` is padded to with zeros for bf16.
inline constexpr int64_t kPanelRows = 32;
inline constexpr int64_t kPanelDepth = 32;

// A weight matrix [out, in] in the one layout that every kernel reads, made once at load. Borrowed;
// data is 64-byte aligned.
//
// Panels of 32 outputs follow one another, the last one filled up with outputs of zeros. A panel
// lies in the order in which a product reads it, so that a product is one stream through memory:
//
//   bf16      [in / 32][2][16][16][2]: of 32 inputs, the first 16 outputs, then the others; of
//             those, input pairs; of each pair, the 16 outputs. 1 KiB is a right operand of
//             tdpbf16ps, 64 bytes one of vdpbf16ps. `in` is padded to a multiple of 32 with zeros.
//   f32, f16  [in][32]
struct Matrix {
  const void* data = nullptr;
  DType dtype = DType::kF32;
  int64_t out = 0;
  int64_t in = 0;
};

// `in` rounded up to a multiple of kPanelDepth; and only where `dtype`, of weights or of
// activations, is padded, which is bf16.
int64_t ToPanelDepth(int64_t in);
int64_t PaddedDepth(int64_t in, DType dtype);

int64_t PanelCount(int64_t out);
int64_t PanelBytes(int64_t in, DType dtype);  // A multiple of 64.
int64_t PackedBytes(int64_t out, int64_t in, DType dtype);

// Writes one panel, PanelBytes(in, dtype) from the 64-byte aligned `panel` on. rows[i] are the `in`
// contiguous weights of output i, aligned to their element; null for zeros. Concurrent calls may
// write different panels.
void PackPanel(const void* const rows[kPanelRows], DType dtype, int64_t in, void* panel);

// Weight [row, column], widened; for reference code, one at a time.
float WeightAt(const Matrix& matrix, int64_t row, int64_t column);

// All weights of one output, widened exactly, to to[0 .. in): an embedding's row. Touches every
// cache line of the half panel that holds it: 32 KiB for 1024 bf16 weights.
void UnpackRow(const Matrix& matrix, int64_t row, float* to);

}  // namespace lynx::kernels
