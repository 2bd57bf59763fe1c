#pragma once

#include <cstdint>

#include "common/base/dtype.h"
#include "kernels/core/isa.h"
#include "kernels/gemm/packed_matrix.h"

namespace lynx::kernels::internal {

// Rows of one product at most: their x stays in a core's L2 cache while panels pass.
inline constexpr int64_t kProductRows = 128;

// Rows of activations times one panel of weights: the inner loop of every matrix product.
//
//   out[r, o] = sum over i of x[r, i] * panel[o, i]
//
// Each instruction set walks over i in one order, whatever the number of rows: the bits of a
// product do not depend on what shares the call.
struct PanelProductArgs {
  const void* x = nullptr;      // [rows, in] of x_dtype, rows x_stride elements apart. bf16 rows
                                // are continued by zeros up to a multiple of kPanelDepth.
  const void* panel = nullptr;  // One panel of a Matrix.
  // Where the memory ends that is read after the panel, to be fetched in time. Null: the panel is
  // in cache already.
  const void* stream_end = nullptr;
  float* out = nullptr;  // [rows, kPanelRows], contiguous, 64-byte aligned
  int64_t rows = 0;      // [1, kProductRows]
  int64_t in = 0;        // > 0
  int64_t x_stride = 0;
  DType x_dtype = DType::kF32;  // kF32 or kBf16
  DType panel_dtype = DType::kF32;
};

}  // namespace lynx::kernels::internal

// The avx512bf16 and amx bodies take bf16 by bf16 only.
LYNX_BF16_KERNEL_BODY(void, PanelProduct, const internal::PanelProductArgs& args)

namespace lynx::kernels::internal {

// The body for these types: those that multiply bf16 by bf16 leave the rest to avx512.
inline auto PanelProductFor(Isa isa, DType x_dtype, DType panel_dtype) {
  const bool bf16 = x_dtype == DType::kBf16 && panel_dtype == DType::kBf16;
  return PanelProductFor(isa > Isa::kAvx512 && !bf16 ? Isa::kAvx512 : isa);
}

}  // namespace lynx::kernels::internal
