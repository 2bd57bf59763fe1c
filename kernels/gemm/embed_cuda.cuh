#pragma once

#include "kernels/core/device_kernels.h"
#include "kernels/gemm/embed_args.h"
#include "kernels/gemm/panel_product_cuda.cuh"

namespace lynx::kernels::device {

inline constexpr int kEmbedThreads = 256;

// Weight [row % 32, column] of a panel whose type is W.
template <typename W>
__device__ float PanelWeight(const std::byte* panel, int row, int column) {
  const int pair = column % kBlockDepth / 2;
  if constexpr (std::is_same_v<W, uint16_t>) {
    const std::byte* half =
        panel + int64_t{column / kBlockDepth} * kBlockBytes + row / 16 * (kBlockBytes / 2);
    const auto word = reinterpret_cast<const uint32_t*>(half)[pair * 16 + row % 16];
    return column % 2 == 0 ? Low(word) : High(word);
  } else {
    const W value = reinterpret_cast<const W*>(panel)[int64_t{column} * 32 + row];
    if constexpr (std::is_same_v<W, float>)
      return value;
    else
      return F16ToF32(value.bits);
  }
}

// A block a row.
template <typename W>
__global__ void __launch_bounds__(kEmbedThreads) EmbedKernel(EmbedArgs args) {
  const int64_t r = blockIdx.x;
  const int64_t row = int64_t{args.tokens[r]} - args.first;
  const bool there = row >= 0 && row < args.w.out;
  const int depth = static_cast<int>(args.w.in);
  const int64_t padded =
      std::is_same_v<W, uint16_t> ? CeilDiv(depth, kBlockDepth) * kBlockDepth : depth;
  const std::byte* panel = static_cast<const std::byte*>(args.w.data) +
                           (there ? row / 32 : 0) * padded * 32 * static_cast<int64_t>(sizeof(W));
  for (int i = static_cast<int>(threadIdx.x); i < depth; i += kEmbedThreads) {
    const float value = there ? PanelWeight<W>(panel, static_cast<int>(row % 32), i) : 0.0f;
    args.y[r * args.y_stride + i] = args.scale == 1 ? value : value * args.scale;
  }
}

inline int QueueEmbed(const EmbedArgs& args, const DeviceQueue& queue) {
  const auto grid = static_cast<unsigned>(args.rows);
  if (args.w.dtype == DType::kBf16) {
    LYNX_LAUNCH(EmbedKernel<uint16_t>, grid, kEmbedThreads, 0, queue.stream, args);
  } else if (args.w.dtype == DType::kF16) {
    LYNX_LAUNCH(EmbedKernel<F16Bits>, grid, kEmbedThreads, 0, queue.stream, args);
  } else {
    LYNX_LAUNCH(EmbedKernel<float>, grid, kEmbedThreads, 0, queue.stream, args);
  }
  return static_cast<int>(cudaGetLastError());
}

}  // namespace lynx::kernels::device
