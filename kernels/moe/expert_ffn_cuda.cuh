#pragma once

#include "kernels/core/device.cuh"
#include "kernels/core/device_kernels.h"
#include "kernels/core/scratch_layout.h"
#include "kernels/moe/expert_ffn_args.h"

// The experts of a decode step: one launch that groups rows by expert, and one whose blocks stay
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
// A row's sums are split over the warps by the inner dimension alone and added in their order: its
// bits depend neither on other rows nor on who takes which item.
namespace lynx::kernels::device {

inline constexpr int kFfnWarps = 8;
inline constexpr int kFfnThreads = kFfnWarps * 32;
inline constexpr int kFfnStages = 4;
inline constexpr int kFfnTileRows = 8;
// Tiles that one pass over the weights serves, where a batch has few rows and where it has more: of
// more a thread holds so many sums that one block has the processor for itself.
inline constexpr int kFfnFewTiles = 4;
inline constexpr int kFfnMoreTiles = 8;
inline constexpr int kFfnMaxExperts = 1024;
inline constexpr int kFfnNotBf16 = -1;
// Of the inner dimension: a block is what a lane loads 4 times 16 bytes of, for 32 outputs.
inline constexpr int kFfnDepth = 32;
inline constexpr int kFfnBlockBytes = 32 * kFfnDepth * 2;

// Where each array lies from `base` on.
struct FfnScratch {
  uint32_t* ticket;       // The next item.
  uint32_t* gate_done;    // [experts] Gate panels that are through, by place in `active`.
  uint32_t* down_done;    // Down panels, of all.
  int32_t* active_count;  // kFfnNotBf16: nothing can be computed.
  int32_t* active;        // [experts] Those with a row, ascending.
  int32_t* offsets;       // [experts + 1] Into order.
  int32_t* order;         // [rows * top_k] Assignments, by expert.
  std::byte* inner;       // [rows * top_k, inner_stride] of x_dtype
  float* outer;           // [rows * top_k, hidden]
  int64_t inner_stride;
  size_t bytes;

  FfnScratch(std::byte* base, const ExpertFfnArgs& args)
      : inner_stride(CeilDiv<int64_t>(args.intermediate, kFfnDepth) * kFfnDepth) {
    const auto experts = static_cast<size_t>(args.expert_count);
    const auto entries = static_cast<size_t>(args.rows * args.top_k);
    ScratchLayout layout(base);
    layout.Take(ticket, 1);
    layout.Take(gate_done, experts);
    layout.Take(down_done, 1);
    layout.Take(active_count, 1);
    layout.Take(active, experts);
    layout.Take(offsets, experts + 1);
    layout.Take(order, entries);
    layout.Take(inner, entries * static_cast<size_t>(inner_stride) * SizeOf(args.x_dtype));
    layout.Take(outer, entries * static_cast<size_t>(args.hidden));
    bytes = layout.bytes();
  }
};

// Stably sorts assignments by expert, and sets the counters to zero. One block, a thread an expert.
static __global__ void __launch_bounds__(kFfnMaxExperts)
    GroupRows(ExpertFfnArgs args, FfnScratch scratch) {
  LYNX_SHARED(counts, int[kFfnMaxExperts]);
  const int e = static_cast<int>(threadIdx.x), experts = static_cast<int>(args.expert_count);
  const int entries = static_cast<int>(args.rows * args.top_k);
  int count = 0;
  if (e < experts) {
    for (int i = 0; i < entries; ++i) count += args.ids[i] == e ? 1 : 0;
  }
  counts[e] = count;
  __syncthreads();
  if (e < experts) {
    int offset = 0, place = 0;
    for (int other = 0; other < e; ++other) {
      offset += counts[other];
      place += counts[other] > 0 ? 1 : 0;
    }
    scratch.offsets[e] = offset;
    scratch.gate_done[e] = 0;
    if (count > 0) scratch.active[place] = e;
    for (int i = 0; count > 0 && i < entries; ++i) {
      if (args.ids[i] == e) scratch.order[offset++] = i;
    }
    if (e == experts - 1) {
      scratch.offsets[experts] = offset;
      *scratch.active_count = place + (count > 0 ? 1 : 0);
    }
  }
  if (e == 0) *scratch.ticket = *scratch.down_done = 0;
  if (e == experts - 1 && (args.experts[0].gate_up.dtype != DType::kBf16 ||
                           args.experts[0].down.dtype != DType::kBf16)) {
    *scratch.active_count = kFfnNotBf16;
  }
}

// --- Tiles: 32 outputs by 8 rows, a block of the inner dimension a step ---
//
// Lane 4 g + t holds, of each block, the weights of outputs 4 g .. 4 g + 3 with inputs 8 t .. 8 t +
// 7: w[i] has inputs 8 t + 2 i and 8 t + 2 i + 1, a word an output.

// Where lane `lane` finds w[i] in a block of the packed layout, [2][16 pairs][16 outputs][2].
__device__ inline int WeightOffset(int lane, int i) {
  const int g = lane / 4, t = lane % 4;
  return g / 4 * (kFfnBlockBytes / 2) + (4 * t + i) * 64 + g % 4 * 16;
}

// Rows of bf16, on tensor cores. mma's outputs and inputs are numbered as the lanes have them.
template <int kTiles>
struct TensorTile {
  using Element = uint16_t;
  static constexpr int kRows = kTiles * kFfnTileRows;
  const uint4* x;      // Of the first row; of the lane's row in each tile it lies
  int offset[kTiles];  // so much further, in 16 bytes: a pointer each would be too many registers.
  float scale[kTiles];
  float sums[kTiles][2][4];

  // row_at(i, &scale): where row i of the pass begins.
  template <typename RowAt>
  __device__ TensorTile(int lane, int count, const RowAt& row_at) {
    x = reinterpret_cast<const uint4*>(row_at(0, &scale[0]));
    for (int n = 0; n < kTiles; ++n) {
      // Beyond the last row the last one again: nobody reads what comes of it.
      const Element* row = row_at(Min(n * kFfnTileRows + lane / 4, count - 1), &scale[n]);
      offset[n] = static_cast<int>(reinterpret_cast<const uint4*>(row) + lane % 4 - x);
      for (int half = 0; half < 2; ++half) {
        for (float& sum : sums[n][half]) sum = 0;
      }
    }
  }

  template <bool kScaled>
  __device__ void Step(const uint4 (&w)[4], int block, int /*depth*/) {
    LYNX_UNROLL
    for (int n = 0; n < kTiles; ++n) {
      uint4 v = x[offset[n] + block * (kFfnDepth / 8)];
      if constexpr (kScaled) {
        v = {Scaled(v.x, scale[n]), Scaled(v.y, scale[n]), Scaled(v.z, scale[n]),
             Scaled(v.w, scale[n])};
      }
      Multiply(w[0], w[1], {v.x, v.y}, sums[n]);
      Multiply(w[2], w[3], {v.z, v.w}, sums[n]);
    }
  }

  // Sums of tile n to partial[row][output].
  __device__ void Store(int n, int lane, float (*partial)[33]) const {
    const int g = lane / 4, t = lane % 4;
    for (int half = 0; half < 2; ++half) {
      for (int i = 0; i < 4; ++i) {
        partial[2 * t + i % 2][4 * g + 2 * half + i / 2] = sums[n][half][i];
      }
    }
  }

 private:
  static __device__ uint32_t Scaled(uint32_t pair, float by) {
    return uint32_t{F32ToBf16(Low(pair) * by)} | uint32_t{F32ToBf16(High(pair) * by)} << 16;
  }
  static __device__ void Multiply(const uint4& first, const uint4& second, uint2 v,
                                  float (&sums)[2][4]) {
    const uint32_t b[2] = {v.x, v.y};
    const uint32_t low[4] = {first.x, first.y, second.x, second.y};
    const uint32_t high[4] = {first.z, first.w, second.z, second.w};
    MmaBf16(low, b, sums[0]);
    MmaBf16(high, b, sums[1]);
  }
};

// Rows of float32, by fused multiply-adds.
struct FmaTile {
  using Element = float;
  static constexpr int kRows = kFfnTileRows;
  const float* x[kFfnTileRows];
  float scale[kFfnTileRows];
  float sums[4][kFfnTileRows];
  int first;  // Of the lane's inputs in a block.

  template <typename RowAt>
  __device__ FmaTile(int lane, int count, const RowAt& row_at) : first(lane % 4 * 8) {
    for (int r = 0; r < kFfnTileRows; ++r) {
      x[r] = row_at(Min(r, count - 1), &scale[r]);
      for (int o = 0; o < 4; ++o) sums[o][r] = 0;
    }
  }

  template <bool kScaled>
  __device__ void Step(const uint4 (&w)[4], int block, int depth) {
    LYNX_UNROLL
    for (int i = 0; i < 4; ++i) {
      const int k = block * kFfnDepth + first + 2 * i;
      const uint32_t words[4] = {w[i].x, w[i].y, w[i].z, w[i].w};
      LYNX_UNROLL
      for (int r = 0; r < kFfnTileRows; ++r) {
        // What lies behind a row may be anything.
        float even = k < depth ? x[r][k] : 0.0f;
        float odd = k + 1 < depth ? x[r][k + 1] : 0.0f;
        if constexpr (kScaled) {
          even = even * scale[r];
          odd = odd * scale[r];
        }
        LYNX_UNROLL
        for (int o = 0; o < 4; ++o) {
          sums[o][r] = fmaf(High(words[o]), odd, fmaf(Low(words[o]), even, sums[o][r]));
        }
      }
    }
  }

  __device__ void Store(int /*n*/, int lane, float (*partial)[33]) const {
    for (int r = 0; r < kFfnTileRows; ++r) {
      for (int o = 0; o < 4; ++o) {
        float sum = sums[o][r];
        sum = sum + __shfl_xor_sync(kAllLanes, sum, 1);
        sum = sum + __shfl_xor_sync(kAllLanes, sum, 2);
        if (r / 2 == lane % 4) partial[r][lane / 4 * 4 + o] = sum;
      }
    }
  }
};

// Weights on their way, and when they are used up, sums on theirs.
struct FfnShared {
  union {
    uint4 ring[kFfnWarps][kFfnStages][4][32];
    float partial[kFfnWarps][kFfnMoreTiles * kFfnTileRows][33];
  };
  uint32_t item;
};

// One panel times `count` rows, at most Tile::kRows: use(row, the 32 sums of row by warp) once a
// row, by a whole warp whose lane is the output.
template <typename Tile, bool kScaled, int kTiles, typename RowAt, typename Use>
__device__ void MultiplyPanel(FfnShared& shared, const std::byte* panel, int depth, int count,
                              const RowAt& row_at, const Use& use) {
  const int warp = static_cast<int>(threadIdx.x / kWarp);
  const int lane = static_cast<int>(threadIdx.x % kWarp);
  const int blocks = CeilDiv(depth, kFfnDepth);
  const int begin = blocks * warp / kFfnWarps, end = blocks * (warp + 1) / kFfnWarps;
  uint4(&ring)[kFfnStages][4][32] = shared.ring[warp];
  const auto fetch = [&](int block) {
    if (block < end) {
      const std::byte* from = panel + static_cast<int64_t>(block) * kFfnBlockBytes;
      for (int i = 0; i < 4; ++i) {
        CopyAsync16(&ring[(block - begin) % kFfnStages][i][lane], from + WeightOffset(lane, i));
      }
    }
    CommitCopies();
  };
  for (int ahead = 0; ahead < kFfnStages - 1; ++ahead) fetch(begin + ahead);
  Tile tile(lane, count, row_at);
  LYNX_NO_UNROLL
  for (int block = begin; block < end; ++block) {
    WaitForCopies<kFfnStages - 2>();
    uint4 w[4];
    for (int i = 0; i < 4; ++i) w[i] = ring[(block - begin) % kFfnStages][i][lane];
    fetch(block + kFfnStages - 1);
    tile.template Step<kScaled>(w, block, depth);
  }
  __syncthreads();  // The last of a ring has been read.
  LYNX_UNROLL
  for (int n = 0; n < kTiles; ++n) tile.Store(n, lane, shared.partial[warp] + n * kFfnTileRows);
  __syncthreads();
  LYNX_NO_UNROLL
  for (int row = warp; row < count; row += kFfnWarps) {
    float sum = 0;
    for (int w = 0; w < kFfnWarps; ++w) sum = sum + shared.partial[w][row][lane];
    use(row, sum);
  }
  __syncthreads();
}

// The same for any number of rows, in passes over the weights.
template <typename Element, bool kScaled, int kMaxTiles, typename RowAt, typename Use>
__device__ void MultiplyRows(FfnShared& shared, const std::byte* panel, int depth, int count,
                             const RowAt& row_at, const Use& use) {
  const auto pass = [&]<typename Tile, int kTiles>(int first) {
    MultiplyPanel<Tile, kScaled, kTiles>(
        shared, panel, depth, Min(count - first, Tile::kRows),
        [&](int row, float* scale) { return row_at(first + row, scale); },
        [&](int row, float sum) { use(first + row, sum); });
  };
  if constexpr (sizeof(Element) == 4) {
    for (int first = 0; first < count; first += FmaTile::kRows) {
      pass.template operator()<FmaTile, 1>(first);
    }
  } else {
    for (int first = 0; first < count; first += kMaxTiles * kFfnTileRows) {
      const int left = count - first;
      if (left <= 8) {
        pass.template operator()<TensorTile<1>, 1>(first);
      } else if (left <= 16) {
        pass.template operator()<TensorTile<2>, 2>(first);
      } else if (left <= 32 || kMaxTiles == kFfnFewTiles) {
        pass.template operator()<TensorTile<kFfnFewTiles>, kFfnFewTiles>(first);
      } else {
        pass.template operator()<TensorTile<kMaxTiles>, kMaxTiles>(first);
      }
    }
  }
}

__device__ inline float Activate(float gate, float up, float clamp) {
  if (clamp == 0) return gate / (1.0f + expf(-gate)) * up;
  gate = gate > clamp ? clamp : gate;  // NaN stays.
  up = up > clamp ? clamp : up < -clamp ? -clamp : up;
  return gate / (1.0f + expf(-1.702f * gate)) * (up + 1.0f);
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

template <typename Element, bool kScaled, int kMaxTiles>
__global__ void __launch_bounds__(kFfnThreads, kMaxTiles == kFfnFewTiles ? 2 : 1)
    ExpertFfnKernel(ExpertFfnArgs args, FfnScratch scratch) {
  LYNX_DYNAMIC_SHARED(FfnShared, memory);
  FfnShared& shared = *memory;
  const int lane = static_cast<int>(threadIdx.x % kWarp);
  const int hidden = static_cast<int>(args.hidden), inner = static_cast<int>(args.intermediate);
  const int top_k = static_cast<int>(args.top_k);  // 64 bits divide by many instructions.
  const auto gate_panels = static_cast<uint32_t>(CeilDiv(inner, 16));
  const auto down_panels = static_cast<uint32_t>(CeilDiv(hidden, 32));
  const int64_t gate_bytes = CeilDiv<int64_t>(hidden, kFfnDepth) * kFfnBlockBytes;
  const int64_t down_bytes = CeilDiv<int64_t>(inner, kFfnDepth) * kFfnBlockBytes;
  if (*scratch.active_count == kFfnNotBf16) {  // Not to go unseen.
    for (int64_t row = blockIdx.x; row < args.rows; row += gridDim.x) {
      for (int column = static_cast<int>(threadIdx.x); column < hidden; column += kFfnThreads) {
        args.y[row * args.y_stride + column] = __uint_as_float(0x7fc00000u);
      }
    }
    return;
  }
  const auto experts = static_cast<uint32_t>(*scratch.active_count);
  const uint32_t gates = experts * gate_panels, downs = experts * down_panels;
  const uint32_t items = gates + downs + static_cast<uint32_t>(args.rows);
  auto* const inner_rows = reinterpret_cast<Element*>(scratch.inner);

  if (threadIdx.x == 0) shared.item = atomicAdd(scratch.ticket, 1u);
  __syncthreads();
  uint32_t item = shared.item;
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
        MultiplyRows<Element, kScaled, kMaxTiles>(
            shared, static_cast<const std::byte*>(expert.gate_up.data) + panel * gate_bytes, hidden,
            count,
            [&](int row, float* scale) {
              *scale = kScaled ? args.weights[order[row]] : 1.0f;
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
        MultiplyRows<Element, false, kMaxTiles>(
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
      const int32_t* ids = args.ids + row * args.top_k;
      const float* weights = args.weights + row * args.top_k;
      WaitFor(scratch.down_done, downs);
      LYNX_NO_UNROLL
      for (int column = static_cast<int>(threadIdx.x); column < hidden; column += kFfnThreads) {
        float sum = 0;
        LYNX_NO_UNROLL
        for (int64_t j = 0; j < args.top_k; ++j) {
          if (ids[j] == kNoExpert) continue;
          const float value = scratch.outer[(row * args.top_k + j) * args.hidden + column];
          sum = fmaf(kScaled ? 1.0f : weights[j], value, sum);
        }
        float& y = args.y[row * args.y_stride + column];
        y = y + sum;
      }
    }
    __syncthreads();
    if (threadIdx.x == 0) shared.item = next;
    __syncthreads();
    item = shared.item;
  }
}

// As many blocks as run at once, of the device that is current first: a process has GPUs of one
// kind.
template <typename Element, bool kScaled, int kMaxTiles>
int FfnGrid() {
  static const int grid = [] {
    const auto kernel = &ExpertFfnKernel<Element, kScaled, kMaxTiles>;
    int device = 0, processors = 0, blocks = 0;
    cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, sizeof(FfnShared));
    if (cudaGetDevice(&device) != cudaSuccess ||
        cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device) !=
            cudaSuccess ||
        cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel, kFfnThreads,
                                                      sizeof(FfnShared)) != cudaSuccess) {
      return 0;
    }
    return processors * blocks;
  }();
  return grid;
}

template <typename Element, bool kScaled, int kMaxTiles>
int QueueExpertFfnWith(const ExpertFfnArgs& args, const FfnScratch& scratch, void* stream) {
  const int grid = FfnGrid<Element, kScaled, kMaxTiles>();
  if (grid > 0) {
    const auto threads = static_cast<unsigned>(CeilDiv<int64_t>(args.expert_count, 32) * 32);
    LYNX_LAUNCH(GroupRows, 1u, threads, 0, stream, args, scratch);
    LYNX_LAUNCH((ExpertFfnKernel<Element, kScaled, kMaxTiles>), static_cast<unsigned>(grid),
                kFfnThreads, sizeof(FfnShared), stream, args, scratch);
  }
  return static_cast<int>(cudaGetLastError());
}

template <typename Element, int kMaxTiles>
int QueueExpertFfnOf(const ExpertFfnArgs& args, const FfnScratch& scratch, void* stream) {
  return args.scale_input ? QueueExpertFfnWith<Element, true, kMaxTiles>(args, scratch, stream)
                          : QueueExpertFfnWith<Element, false, kMaxTiles>(args, scratch, stream);
}

// Sizes are such as ExpertFfn() takes for GPUs.
inline int QueueExpertFfn(const ExpertFfnArgs& args, const DeviceQueue& queue) {
  const FfnScratch scratch(queue.scratch, args);
  if (queue.scratch == nullptr || queue.scratch_bytes < scratch.bytes) return kScratchTooSmall;
  if (args.x_dtype == DType::kF32) {
    return QueueExpertFfnOf<float, kFfnFewTiles>(args, scratch, queue.stream);
  }
  return args.rows <= kFfnFewTiles * kFfnTileRows
             ? QueueExpertFfnOf<uint16_t, kFfnFewTiles>(args, scratch, queue.stream)
             : QueueExpertFfnOf<uint16_t, kFfnMoreTiles>(args, scratch, queue.stream);
}

}  // namespace lynx::kernels::device
