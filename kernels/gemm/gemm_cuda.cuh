#pragma once

#include "kernels/core/device_kernels.h"
#include "kernels/gemm/gemm_args.h"
#include "kernels/gemm/panel_product_cuda.cuh"
#include "kernels/gemm/tile_product_cuda.cuh"

// Dense products. Two kernels, which sum in one order (panel_product_cuda.cuh) and so give the same
// bits; the number of rows decides which works:
//
//   GemmPanels   a block for a panel and the rows of one pass over it: reads weights once where all
//                rows fit a pass, which is up to 64 of bf16. Any type.
//   GemmTiles    a block for 4 panels and 128 rows, both by way of shared memory: bf16 by bf16, of
//                more rows.
namespace lynx::kernels::device {

inline constexpr int kGemmsPerLaunch = 32;  // As many as fit a kernel's parameters.

// Products whose types are alike.
struct GemmBatch {
  GemmArgs products[kGemmsPerLaunch];
  uint32_t ends[kGemmsPerLaunch];  // Of each product's blocks among those of all.
  int count;

  // Which product block `block` is of, and its number there.
  __device__ int ProductOf(uint32_t block, int* number) const {
    int i = 0;
    while (block >= ends[i]) ++i;
    *number = static_cast<int>(block - (i == 0 ? 0 : ends[i - 1]));
    return i;
  }
};

__device__ inline void StoreProduct(const GemmArgs& args, int64_t row, int column, float product) {
  if (column >= args.w.out) return;
  if (args.scale != 1 || args.bias != nullptr) {
    product = (args.bias == nullptr ? 0.0f : args.bias[column]) + args.scale * product;
  }
  float& y = args.y[row * args.y_stride + column];
  y = args.accumulate ? y + product : product;
}

template <typename X, typename W, int kTiles>
__global__ void __launch_bounds__(kPanelThreads, kOnTensorCores<X, W>&& kTiles <= kFewTiles ? 2 : 1)
    GemmPanels(const __grid_constant__ GemmBatch batch) {
  using Tile = std::conditional_t<kOnTensorCores<X, W>, TensorTile<kTiles>, FmaTile<X>>;
  LYNX_DYNAMIC_SHARED(PanelShared, shared);
  int panel;
  const GemmArgs& args = batch.products[batch.ProductOf(blockIdx.x, &panel)];
  const int depth = static_cast<int>(args.w.in);
  const std::byte* weights =
      static_cast<const std::byte*>(args.w.data) + panel * PanelBytesOf<W>(depth);
  const int column = panel * 32 + static_cast<int>(threadIdx.x % kWarp);
  for (int64_t first = int64_t{blockIdx.y} * Tile::kRows; first < args.rows;
       first += int64_t{gridDim.y} * Tile::kRows) {
    MultiplyPanel<Tile, W, false, kTiles>(
        *shared, weights, depth, static_cast<int>(Min<int64_t>(args.rows - first, Tile::kRows)),
        [&](int row, float* scale) {
          *scale = 1;
          return static_cast<const X*>(args.x) + (first + row) * args.x_stride;
        },
        [&](int row, float sum) { StoreProduct(args, first + row, column, sum); });
  }
}

static __global__ void __launch_bounds__(kPanelThreads)
    GemmTiles(const __grid_constant__ GemmBatch batch) {
  LYNX_DYNAMIC_SHARED(TileShared, shared);
  int number;
  const GemmArgs& args = batch.products[batch.ProductOf(blockIdx.x, &number)];
  const int panels = CeilDiv(static_cast<int>(args.w.out), 32);
  for (int64_t first = int64_t{blockIdx.y} * kTileBlockRows; first < args.rows;
       first += int64_t{gridDim.y} * kTileBlockRows) {
    const int count = static_cast<int>(Min<int64_t>(args.rows - first, kTileBlockRows));
    MultiplyTile(
        *shared, static_cast<const std::byte*>(args.w.data), static_cast<int>(args.w.in),
        number * kTilePanels, panels, count,
        [&](int row) {
          return static_cast<const uint16_t*>(args.x) + (first + row) * args.x_stride;
        },
        [&](int row, int panel, int output, float sum) {
          if (row < count) StoreProduct(args, first + row, panel * 32 + output, sum);
        });
  }
}

template <typename Shared>
int LaunchGemm(void (*kernel)(GemmBatch), GemmBatch& batch, int panels, int rows,
               const DeviceQueue& queue) {
  uint32_t blocks = 0;
  int64_t most_rows = 0;
  for (int i = 0; i < batch.count; ++i) {
    const auto out = static_cast<uint32_t>(batch.products[i].w.out);
    batch.ends[i] = blocks += CeilDiv(out, static_cast<uint32_t>(panels * 32));
    most_rows = Max(most_rows, batch.products[i].rows);
  }
  cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, sizeof(Shared));
  const dim3 grid{blocks,
                  static_cast<unsigned>(Min<int64_t>(CeilDiv<int64_t>(most_rows, rows), 65535)), 1};
  LYNX_LAUNCH(kernel, grid, kPanelThreads, sizeof(Shared), queue.stream, batch);
  return static_cast<int>(cudaGetLastError());
}

template <typename X, typename W, int kTiles>
int LaunchPanels(GemmBatch& batch, const DeviceQueue& queue) {
  return LaunchGemm<PanelShared>(&GemmPanels<X, W, kTiles>, batch, 1, kTiles * kTileRows, queue);
}

inline int LaunchProducts(GemmBatch& batch, int64_t most_rows, const DeviceQueue& queue) {
  const DType x = batch.products[0].x_dtype, w = batch.products[0].w.dtype;
  if (x == DType::kF32) {
    if (w == DType::kF32) return LaunchPanels<float, float, 1>(batch, queue);
    if (w == DType::kF16) return LaunchPanels<float, F16Bits, 1>(batch, queue);
    return LaunchPanels<float, uint16_t, 1>(batch, queue);
  }
  if (w == DType::kF32) return LaunchPanels<uint16_t, float, 1>(batch, queue);
  if (w == DType::kF16) return LaunchPanels<uint16_t, F16Bits, 1>(batch, queue);
  if (most_rows <= 8) return LaunchPanels<uint16_t, uint16_t, 1>(batch, queue);
  if (most_rows <= 16) return LaunchPanels<uint16_t, uint16_t, 2>(batch, queue);
  if (most_rows <= 32) return LaunchPanels<uint16_t, uint16_t, kFewTiles>(batch, queue);
  if (most_rows <= 64) return LaunchPanels<uint16_t, uint16_t, kMoreTiles>(batch, queue);
  return LaunchGemm<TileShared>(&GemmTiles, batch, kTilePanels, kTileBlockRows, queue);
}

// Sizes are such as Gemm() takes for GPUs.
inline int QueueGemm(const GemmProducts& all, const DeviceQueue& queue) {
  for (size_t i = 0; i < all.count;) {
    GemmBatch batch;
    batch.count = 0;
    int64_t most_rows = 0;
    for (; i < all.count && batch.count < kGemmsPerLaunch; ++i) {
      const GemmArgs& args = all.products[i];
      if (args.rows == 0) continue;
      if (batch.count > 0 && (args.x_dtype != batch.products[0].x_dtype ||
                              args.w.dtype != batch.products[0].w.dtype)) {
        break;
      }
      batch.products[batch.count++] = args;
      most_rows = Max(most_rows, args.rows);
    }
    if (batch.count == 0) break;
    if (const int error = LaunchProducts(batch, most_rows, queue); error != 0) return error;
  }
  return 0;
}

}  // namespace lynx::kernels::device
