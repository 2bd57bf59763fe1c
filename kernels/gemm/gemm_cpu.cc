#include "kernels/core/simd.h"
#include "kernels/gemm/dot_tile.h"
#include "kernels/gemm/gemm_backends.h"

namespace lynx::kernels::LYNX_KERNEL_ISA {
namespace {

// Rows that pass over the columns of an item together: their x stays in L1 or L2.
constexpr int64_t kRowBlock = 32;

template <typename W>
void Columns(const GemmArgs& args, const W* w, int64_t begin, int64_t end) {
  for (int64_t block = 0; block < args.rows; block += kRowBlock) {
    const int64_t block_end = block + kRowBlock < args.rows ? block + kRowBlock : args.rows;
    for (int64_t o = begin; o < end; o += kTileColumns) {
      const int columns = static_cast<int>(end - o < kTileColumns ? end - o : kTileColumns);
      for (int64_t r = block; r < block_end; r += kTileRows) {
        const int rows = static_cast<int>(block_end - r < kTileRows ? block_end - r : kTileRows);
        const float* x[kTileRows];
        for (int i = 0; i < rows; ++i) x[i] = args.x + (r + i) * args.x_stride;
        float tile[kTileRows * kTileColumns];
        DotTileAny(x, rows, w + o * args.in, columns, args.in, tile);
        for (int i = 0; i < rows; ++i) {
          float* y = args.y + (r + i) * args.y_stride + o;
          for (int c = 0; c < columns; ++c) {
            const float sum = tile[i * kTileColumns + c];
            y[c] = args.accumulate ? y[c] + sum : sum;
          }
        }
      }
    }
  }
}

}  // namespace

void GemmColumns(const GemmArgs& args, int64_t begin, int64_t end) {
  switch (args.w.dtype) {
    case DType::kF32:
      return Columns(args, static_cast<const float*>(args.w.data), begin, end);
    case DType::kBf16:
      return Columns(args, static_cast<const Bf16*>(args.w.data), begin, end);
    case DType::kF16:
      return Columns(args, static_cast<const F16*>(args.w.data), begin, end);
  }
}

}  // namespace lynx::kernels::LYNX_KERNEL_ISA
