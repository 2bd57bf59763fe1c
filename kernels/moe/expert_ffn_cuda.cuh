#pragma once

#include "kernels/core/device.cuh"
#include "kernels/core/device_kernels.h"
#include "kernels/core/scratch_layout.h"
#include "kernels/gemm/panel_product_cuda.cuh"
#include "kernels/gemm/tile_product_cuda.cuh"
#include "kernels/moe/expert_ffn_args.h"

// The experts. Of a decode step: one launch that groups rows by expert, and one whose blocks stay
// and take work items until there are none. Each active expert's weights are read once, 16 bytes a
// load, by cp.async through a ring that a lane has to itself; products are of 32 outputs (a panel
// of the packed layout) by 8 rows a tile.
//
// Items, in the order in which blocks take them:
//   gate and up   a panel of one expert, for all its rows; results to `inner`
//   down          a panel of one expert, once the expert's inner rows are there; to `outer`
//   combine       a row, once all of outer is there
// Who takes an item waits only for items before it, which somebody has: so nobody waits for ever,
// however few blocks run.
//
// Of more than 64 rows, bf16 by bf16 and not scaled: the same in launches one after the other, each
// expert's rows by 128 (tile_product_cuda.cuh).
//
// A row's bits depend neither on other rows (panel_product_cuda.cuh) nor on who takes which item.
namespace lynx::kernels::device {

inline constexpr int kFfnMaxExperts = 1024;
inline constexpr int kFfnOtherType = -1;

// Where each array lies from `base` on.
struct FfnScratch {
  uint32_t* ticket;       // The next item.
  uint32_t* gate_done;    // [experts] Gate panels that are through, by place in `active`.
  uint32_t* down_done;    // Down panels, of all.
  int32_t* active_count;  // kFfnOtherType: of weights; nothing can be computed.
  int32_t* active;        // [experts] Those with a row, ascending.
  int32_t* tiles;         // [experts + 1] Tiles of rows before those of each place, then of all.
  int32_t* offsets;       // [experts + 1] Into order.
  int32_t* order;         // [rows * top_k] Assignments, by expert.
  std::byte* inner;       // [rows * top_k, inner_stride] of x_dtype
  float* outer;           // [rows * top_k, hidden]
  int64_t inner_stride;
  size_t bytes;

  FfnScratch(std::byte* base, const ExpertFfnArgs& args)
      : inner_stride(CeilDiv<int64_t>(args.intermediate, kBlockDepth) * kBlockDepth) {
    const auto experts = static_cast<size_t>(args.expert_count);
    const auto entries = static_cast<size_t>(args.rows * args.top_k);
    ScratchLayout layout(base);
    layout.Take(ticket, 1);
    layout.Take(gate_done, experts);
    layout.Take(down_done, 1);
    layout.Take(active_count, 1);
    layout.Take(active, experts);
    layout.Take(tiles, experts + 1);
    layout.Take(offsets, experts + 1);
    layout.Take(order, entries);
    layout.Take(inner, entries * static_cast<size_t>(inner_stride) * SizeOf(args.x_dtype));
    layout.Take(outer, entries * static_cast<size_t>(args.hidden));
    bytes = layout.bytes();
  }
};

// Groups assignments by expert, in no order within one, which no bit depends on, and sets the
// counters to zero. One block, of at least a thread an expert.
static __global__ void __launch_bounds__(kFfnMaxExperts)
    GroupRows(ExpertFfnArgs args, FfnScratch scratch) {
  LYNX_SHARED(counts, int[kFfnMaxExperts]);
  LYNX_SHARED(places, int[kFfnMaxExperts]);  // In order, of each expert's next assignment.
  const int thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
  const int e = thread, experts = static_cast<int>(args.expert_count);
  const int entries = static_cast<int>(args.rows * args.top_k);
  const auto each_entry = [&](const auto& use) {
    for (int i = thread; i < entries; i += threads) {
      const int32_t id = args.ids[i];
      if (id >= 0 && id < experts) use(i, id);
    }
  };
  if (e < experts) counts[e] = 0;
  __syncthreads();
  each_entry([&](int /*i*/, int32_t id) { atomicAdd(&counts[id], 1); });
  __syncthreads();
  if (e < experts) {
    int offset = 0, place = 0, tiles = 0;
    for (int other = 0; other < e; ++other) {
      offset += counts[other];
      place += counts[other] > 0 ? 1 : 0;
      tiles += CeilDiv(counts[other], kTileBlockRows);
    }
    scratch.offsets[e] = places[e] = offset;
    scratch.gate_done[e] = 0;
    if (counts[e] > 0) {
      scratch.active[place] = e;
      scratch.tiles[place] = tiles;
    }
    if (e == experts - 1) {
      place += counts[e] > 0 ? 1 : 0;
      scratch.offsets[experts] = offset + counts[e];
      scratch.tiles[place] = tiles + CeilDiv(counts[e], kTileBlockRows);
      const bool known = args.experts[0].gate_up.dtype == args.device_weights &&
                         args.experts[0].down.dtype == args.device_weights;
      *scratch.active_count = known ? place : kFfnOtherType;
      *scratch.ticket = *scratch.down_done = 0;
    }
  }
  __syncthreads();
  each_entry([&](int i, int32_t id) { scratch.order[atomicAdd(&places[id], 1)] = i; });
}

__device__ inline float Activate(float gate, float up, float clamp) {
  if (clamp == 0) return gate / (1.0f + expf(-gate)) * up;
  gate = gate > clamp ? clamp : gate;  // NaN stays.
  up = up > clamp ? clamp : up < -clamp ? -clamp : up;
  return gate / (1.0f + expf(-1.702f * gate)) * (up + 1.0f);
}

// Of kFfnOtherType, not to go unseen.
__device__ inline void SpoilRow(const ExpertFfnArgs& args, int64_t row) {
  for (int64_t column = threadIdx.x; column < args.hidden; column += kPanelThreads) {
    args.y[row * args.y_stride + column] = __uint_as_float(0x7fc00000u);
  }
}

// Adds what the row's experts say.
__device__ inline void CombineRow(const ExpertFfnArgs& args, const FfnScratch& scratch,
                                  int64_t row) {
  const int hidden = static_cast<int>(args.hidden);
  const int32_t* ids = args.ids + row * args.top_k;
  const float* weights = args.weights + row * args.top_k;
  LYNX_NO_UNROLL
  for (int column = static_cast<int>(threadIdx.x); column < hidden; column += kPanelThreads) {
    float sum = 0;
    LYNX_NO_UNROLL
    for (int64_t j = 0; j < args.top_k; ++j) {
      if (ids[j] == kNoExpert) continue;
      const float value = scratch.outer[(row * args.top_k + j) * args.hidden + column];
      sum = fmaf(args.scale_input ? 1.0f : weights[j], value, sum);
    }
    float& y = args.y[row * args.y_stride + column];
    y = y + sum;
  }
}

// Waits until `counter` is `count`, which others see to; then what they wrote is there.
__device__ inline void WaitFor(const uint32_t* counter, uint32_t count) {
  if (threadIdx.x == 0) {
    while (LoadAcquire(counter) < count) Pause();
  }
  __syncthreads();
}
// Says that this block's part is written.
__device__ inline void Done(uint32_t* counter) {
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) Publish(counter);
}

// kScaled: inputs may be scaled.
template <typename Element, typename W, bool kScaled, int kMaxTiles>
__global__ void __launch_bounds__(kPanelThreads,
                                  kOnTensorCores<Element, W>&& kMaxTiles == kFewTiles ? 2 : 1)
    ExpertFfnKernel(ExpertFfnArgs args, FfnScratch scratch) {
  LYNX_DYNAMIC_SHARED(PanelShared, memory);
  LYNX_SHARED(taken, uint32_t);
  PanelShared& shared = *memory;
  const int lane = static_cast<int>(threadIdx.x % kWarp);
  const int hidden = static_cast<int>(args.hidden), inner = static_cast<int>(args.intermediate);
  const int top_k = static_cast<int>(args.top_k);  // 64 bits divide by many instructions.
  const auto gate_panels = static_cast<uint32_t>(CeilDiv(inner, 16));
  const auto down_panels = static_cast<uint32_t>(CeilDiv(hidden, 32));
  const int64_t gate_bytes = PanelBytesOf<W>(hidden), down_bytes = PanelBytesOf<W>(inner);
  if (*scratch.active_count == kFfnOtherType) {
    for (int64_t row = blockIdx.x; row < args.rows; row += gridDim.x) SpoilRow(args, row);
    return;
  }
  const auto experts = static_cast<uint32_t>(*scratch.active_count);
  const uint32_t gates = experts * gate_panels, downs = experts * down_panels;
  const uint32_t items = gates + downs + static_cast<uint32_t>(args.rows);
  auto* const inner_rows = reinterpret_cast<Element*>(scratch.inner);

  if (threadIdx.x == 0) taken = atomicAdd(scratch.ticket, 1u);
  __syncthreads();
  uint32_t item = taken;
  __syncthreads();
  while (item < items) {
    uint32_t next = 0;  // Asked for early: it takes a while.
    if (threadIdx.x == 0) next = atomicAdd(scratch.ticket, 1u);
    const bool gate_item = item < gates;
    const uint32_t place = gate_item ? item / gate_panels : (item - gates) / down_panels;
    const int panel =
        static_cast<int>(gate_item ? item % gate_panels : (item - gates) % down_panels);
    if (item < gates + downs) {
      const int e = scratch.active[place];
      const ExpertWeights& expert = args.experts[e];
      const int first = scratch.offsets[e], count = scratch.offsets[e + 1] - first;
      const int32_t* order = scratch.order + first;
      if (gate_item) {
        const float* bias = expert.gate_up_bias;
        MultiplyRows<Element, W, kScaled, kMaxTiles>(
            shared, static_cast<const std::byte*>(expert.gate_up.data) + panel * gate_bytes, hidden,
            count,
            [&](int row, float* scale) {
              *scale = kScaled && args.scale_input ? args.weights[order[row]] : 1.0f;
              return static_cast<const Element*>(args.x) + order[row] / top_k * args.x_stride;
            },
            [&](int row, float sum) {
              if (bias != nullptr) sum = sum + bias[panel * 32 + lane];
              const float up = __shfl_down_sync(kAllLanes, sum, 16);
              const int column = panel * 16 + lane;
              Element* to = inner_rows + (first + row) * scratch.inner_stride;
              // Zeros up to where the next product's last block ends.
              const bool pads = panel + 1 == static_cast<int>(gate_panels);
              if (lane < 16) {
                to[column] = column < inner ? Narrow<Element>(Activate(sum, up, args.clamp))
                                            : Narrow<Element>(0.0f);
              } else if (pads && column < scratch.inner_stride) {
                to[column] = Narrow<Element>(0.0f);
              }
            });
        Done(&scratch.gate_done[place]);
      } else {
        const float* bias = expert.down_bias;
        WaitFor(&scratch.gate_done[place], gate_panels);
        MultiplyRows<Element, W, false, kMaxTiles>(
            shared, static_cast<const std::byte*>(expert.down.data) + panel * down_bytes, inner,
            count,
            [&](int row, float* scale) {
              *scale = 1;
              return static_cast<const Element*>(inner_rows) + (first + row) * scratch.inner_stride;
            },
            [&](int row, float sum) {
              const int column = panel * 32 + lane;
              if (column >= hidden) return;
              if (bias != nullptr) sum = sum + bias[column];
              scratch.outer[order[row] * args.hidden + column] = sum;
            });
        Done(scratch.down_done);
      }
    } else {
      const int64_t row = item - gates - downs;
      WaitFor(scratch.down_done, downs);
      CombineRow(args, scratch, row);
    }
    __syncthreads();
    if (threadIdx.x == 0) taken = next;
    __syncthreads();
    item = taken;
  }
}

// --- Prompts: three launches after GroupRows, by tiles of 4 panels and 128 rows of an expert ---

// Panels [0, panels) of all experts times their rows: multiply(expert, the tile's first entry of
// `order`, how many, the tile's first panel).
template <typename Multiply>
__device__ void ForExpertTiles(const FfnScratch& scratch, int panels, const Multiply& multiply) {
  const int experts = *scratch.active_count;
  if (experts <= 0) return;  // None, or kFfnOtherType.
  const int across = CeilDiv(panels, kTilePanels);
  const int64_t items = int64_t{scratch.tiles[experts]} * across;
  for (int64_t item = blockIdx.x; item < items; item += gridDim.x) {
    const int tile = static_cast<int>(item / across);
    int place = 0;
    for (int end = experts; end - place > 1;) {
      const int middle = (place + end) / 2;
      (scratch.tiles[middle] <= tile ? place : end) = middle;
    }
    const int e = scratch.active[place];
    const int first = scratch.offsets[e] + (tile - scratch.tiles[place]) * kTileBlockRows;
    multiply(e, first, Min(scratch.offsets[e + 1] - first, kTileBlockRows),
             static_cast<int>(item % across) * kTilePanels);
  }
}

static __global__ void __launch_bounds__(kPanelThreads)
    ExpertGateTiles(ExpertFfnArgs args, FfnScratch scratch) {
  LYNX_DYNAMIC_SHARED(TileShared, shared);
  const int top_k = static_cast<int>(args.top_k), inner = static_cast<int>(args.intermediate);
  const int panels = CeilDiv(inner, 16);
  auto* const inner_rows = reinterpret_cast<uint16_t*>(scratch.inner);
  ForExpertTiles(scratch, panels, [&](int e, int first, int count, int first_panel) {
    const ExpertWeights& expert = args.experts[e];
    const float* const bias = expert.gate_up_bias;
    MultiplyTile(
        *shared, static_cast<const std::byte*>(expert.gate_up.data), static_cast<int>(args.hidden),
        first_panel, panels, count,
        [&](int row) {
          return static_cast<const uint16_t*>(args.x) +
                 scratch.order[first + row] / top_k * args.x_stride;
        },
        [&](int row, int panel, int output, float sum) {
          if (bias != nullptr && panel < panels) sum = sum + bias[panel * 32 + output];
          const float up = __shfl_down_sync(kAllLanes, sum, 16);
          const int column = panel * 16 + output;
          // Zeros up to where the next product's last block ends.
          const bool pads = panel + 1 == panels && column < scratch.inner_stride;
          if (row >= count || panel >= panels || (output >= 16 && !pads)) return;
          inner_rows[(first + row) * scratch.inner_stride + column] =
              output < 16 && column < inner ? F32ToBf16(Activate(sum, up, args.clamp))
                                            : uint16_t{0};
        });
  });
}

static __global__ void __launch_bounds__(kPanelThreads)
    ExpertDownTiles(ExpertFfnArgs args, FfnScratch scratch) {
  LYNX_DYNAMIC_SHARED(TileShared, shared);
  const int hidden = static_cast<int>(args.hidden);
  const int panels = CeilDiv(hidden, 32);
  const auto* const inner_rows = reinterpret_cast<const uint16_t*>(scratch.inner);
  ForExpertTiles(scratch, panels, [&](int e, int first, int count, int first_panel) {
    const ExpertWeights& expert = args.experts[e];
    const float* const bias = expert.down_bias;
    MultiplyTile(
        *shared, static_cast<const std::byte*>(expert.down.data),
        static_cast<int>(args.intermediate), first_panel, panels, count,
        [&](int row) { return inner_rows + (first + row) * scratch.inner_stride; },
        [&](int row, int panel, int output, float sum) {
          const int column = panel * 32 + output;
          if (row >= count || column >= hidden) return;
          if (bias != nullptr) sum = sum + bias[column];
          scratch.outer[scratch.order[first + row] * args.hidden + column] = sum;
        });
  });
}

static __global__ void __launch_bounds__(kPanelThreads)
    ExpertCombine(ExpertFfnArgs args, FfnScratch scratch) {
  if (*scratch.active_count == kFfnOtherType) {
    SpoilRow(args, blockIdx.x);
  } else {
    CombineRow(args, scratch, blockIdx.x);
  }
}

// As many blocks as run at once, of the device that is current first: a process has GPUs of one
// kind.
template <typename Shared>
int ResidentBlocks(void (*kernel)(ExpertFfnArgs, FfnScratch)) {
  int device = 0, processors = 0, blocks = 0;
  cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, sizeof(Shared));
  if (cudaGetDevice(&device) != cudaSuccess ||
      cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device) != cudaSuccess ||
      cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel, kPanelThreads,
                                                    sizeof(Shared)) != cudaSuccess) {
    return 0;
  }
  return processors * blocks;
}

inline void LaunchGroupRows(const ExpertFfnArgs& args, const FfnScratch& scratch, void* stream) {
  const int64_t wanted = Max(args.expert_count, args.rows * args.top_k);
  const auto threads =
      static_cast<unsigned>(Min<int64_t>(CeilDiv<int64_t>(wanted, 32) * 32, kFfnMaxExperts));
  LYNX_LAUNCH(GroupRows, 1u, threads, 0, stream, args, scratch);
}

template <typename Element, typename W, bool kScaled, int kMaxTiles>
int LaunchExpertFfn(const ExpertFfnArgs& args, const FfnScratch& scratch, void* stream) {
  static const int grid =
      ResidentBlocks<PanelShared>(&ExpertFfnKernel<Element, W, kScaled, kMaxTiles>);
  if (grid > 0) {
    LaunchGroupRows(args, scratch, stream);
    LYNX_LAUNCH((ExpertFfnKernel<Element, W, kScaled, kMaxTiles>), static_cast<unsigned>(grid),
                kPanelThreads, sizeof(PanelShared), stream, args, scratch);
  }
  return static_cast<int>(cudaGetLastError());
}

inline int LaunchExpertTiles(const ExpertFfnArgs& args, const FfnScratch& scratch, void* stream) {
  static const int gate_grid = ResidentBlocks<TileShared>(&ExpertGateTiles);
  static const int down_grid = ResidentBlocks<TileShared>(&ExpertDownTiles);
  if (gate_grid > 0 && down_grid > 0) {
    LaunchGroupRows(args, scratch, stream);
    LYNX_LAUNCH(ExpertGateTiles, static_cast<unsigned>(gate_grid), kPanelThreads,
                sizeof(TileShared), stream, args, scratch);
    LYNX_LAUNCH(ExpertDownTiles, static_cast<unsigned>(down_grid), kPanelThreads,
                sizeof(TileShared), stream, args, scratch);
    LYNX_LAUNCH(ExpertCombine, static_cast<unsigned>(args.rows), kPanelThreads, 0, stream, args,
                scratch);
  }
  return static_cast<int>(cudaGetLastError());
}

// One kernel multiplies scaled inputs and others: a factor of 1 changes no bit.
template <typename Element, typename W>
int LaunchByFma(const ExpertFfnArgs& args, const FfnScratch& scratch, void* stream) {
  return LaunchExpertFfn<Element, W, true, 1>(args, scratch, stream);
}

inline int LaunchOnTensorCores(const ExpertFfnArgs& args, const FfnScratch& scratch, void* stream) {
  const bool few = args.rows <= kFewTiles * kTileRows, more = args.rows <= kMoreTiles * kTileRows;
  if (args.scale_input) {
    return few ? LaunchExpertFfn<uint16_t, uint16_t, true, kFewTiles>(args, scratch, stream)
               : LaunchExpertFfn<uint16_t, uint16_t, true, kMoreTiles>(args, scratch, stream);
  }
  if (few) return LaunchExpertFfn<uint16_t, uint16_t, false, kFewTiles>(args, scratch, stream);
  if (more) return LaunchExpertFfn<uint16_t, uint16_t, false, kMoreTiles>(args, scratch, stream);
  return LaunchExpertTiles(args, scratch, stream);
}

// Sizes are such as ExpertFfn() takes for GPUs.
inline int QueueExpertFfn(const ExpertFfnArgs& args, const DeviceQueue& queue) {
  const FfnScratch scratch(queue.scratch, args);
  if (queue.scratch == nullptr || queue.scratch_bytes < scratch.bytes) return kScratchTooSmall;
  void* const stream = queue.stream;
  const DType w = args.device_weights;
  if (args.x_dtype == DType::kF32) {
    if (w == DType::kF32) return LaunchByFma<float, float>(args, scratch, stream);
    if (w == DType::kF16) return LaunchByFma<float, F16Bits>(args, scratch, stream);
    return LaunchByFma<float, uint16_t>(args, scratch, stream);
  }
  if (w == DType::kF32) return LaunchByFma<uint16_t, float>(args, scratch, stream);
  if (w == DType::kF16) return LaunchByFma<uint16_t, F16Bits>(args, scratch, stream);
  return LaunchOnTensorCores(args, scratch, stream);
}

}  // namespace lynx::kernels::device
