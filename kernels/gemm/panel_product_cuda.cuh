#pragma once

#include "kernels/core/device.cuh"

// What every matrix product on GPUs is made of: rows of activations times one panel of 32 outputs
// (packed_matrix.h), by a block of 8 warps. The inner dimension is cut into blocks of 32 inputs,
// and the blocks into 8 segments, one a warp; each segment is summed in order, and then the
// segments are. That order depends on the inner dimension alone: a row's bits depend neither on
// other rows nor on how many there are. Who multiplies otherwise has to keep to it.
//
// Weights are read once, 16 bytes a load, those of bf16 by cp.async through a ring that a lane has
// to itself.
namespace lynx::kernels::device {

inline constexpr int kPanelWarps = 8;
inline constexpr int kPanelThreads = kPanelWarps * 32;
inline constexpr int kPanelStages = 4;
inline constexpr int kTileRows = 8;
// Tiles that one pass over the weights serves, where a batch has few rows and where it has more: of
// more a thread holds so many sums that one block has the processor for itself.
inline constexpr int kFewTiles = 4;
inline constexpr int kMoreTiles = 8;
// Of the inner dimension: a block is what a lane loads 4 times 16 bytes of, for 32 outputs of bf16.
inline constexpr int kBlockDepth = 32;
inline constexpr int kBlockBytes = 32 * kBlockDepth * 2;

// The first block of a segment of the inner dimension.
__device__ inline int SegmentBegin(int blocks, int segment) {
  return blocks * segment / kPanelWarps;
}

// --- Weights: of 32 outputs, a block of the inner dimension ---
//
// Lane 4 g + t holds, of each block, the weights of outputs 4 g .. 4 g + 3 with inputs 8 t .. 8 t +
// 7. Their types are uint16_t for bf16, F16Bits and float.

struct F16Bits {
  uint16_t bits;
};

// Where lane `lane` finds, of a block of bf16, [2][16 pairs][16 outputs][2], inputs 8 t + 2 i and
// 8 t + 2 i + 1: a word an output.
__device__ inline int WeightOffset(int lane, int i) {
  const int g = lane / 4, t = lane % 4;
  return g / 4 * (kBlockBytes / 2) + (4 * t + i) * 64 + g % 4 * 16;
}

template <typename W>
struct LaneWeights;

// Of a panel: bf16 has zeros up to where its last block ends.
template <typename W>
__device__ int64_t PanelBytesOf(int depth) {
  const int inputs =
      std::is_same_v<W, uint16_t> ? CeilDiv(depth, kBlockDepth) * kBlockDepth : depth;
  return int64_t{inputs} * 32 * static_cast<int64_t>(sizeof(W));
}

template <>
struct LaneWeights<uint16_t> {
  uint4 words[4];  // [i]: as above.

  // Input 8 t + j of output 4 g + o.
  __device__ float At(int j, int o) const {
    const uint4& w = words[j / 2];
    const uint32_t word = o == 0 ? w.x : o == 1 ? w.y : o == 2 ? w.z : w.w;
    return j % 2 == 0 ? Low(word) : High(word);
  }
};

template <>
struct LaneWeights<float> {
  float4 inputs[8];

  __device__ float At(int j, int o) const {
    const float4& w = inputs[j];
    return o == 0 ? w.x : o == 1 ? w.y : o == 2 ? w.z : w.w;
  }
};

template <>
struct LaneWeights<F16Bits> {
  uint2 inputs[8];

  __device__ float At(int j, int o) const {
    const uint32_t pair = o < 2 ? inputs[j].x : inputs[j].y;
    return F16ToF32(static_cast<uint16_t>(o % 2 == 0 ? pair & 0xffffu : pair >> 16));
  }
};

// Of one warp.
using WeightRing = uint4[kPanelStages][4][32];

// The blocks [begin, end) of a panel, one after the other.
template <typename W>
class PanelStream {
 public:
  __device__ PanelStream(WeightRing& /*ring*/, const std::byte* panel, int /*begin*/, int /*end*/,
                         int depth, int lane)
      : panel_(panel), depth_(depth), lane_(lane) {}

  // [in][32]: what lies behind the last input is not read.
  __device__ LaneWeights<W> Next(int block) {
    using Four = std::remove_reference_t<decltype(LaneWeights<W>{}.inputs[0])>;
    LaneWeights<W> weights;
    LYNX_UNROLL
    for (int j = 0; j < 8; ++j) {
      const int input = block * kBlockDepth + lane_ % 4 * 8 + j;
      weights.inputs[j] = Four{};
      if (input < depth_) {
        weights.inputs[j] = reinterpret_cast<const Four*>(panel_)[int64_t{8} * input + lane_ / 4];
      }
    }
    return weights;
  }

 private:
  const std::byte* panel_;
  int depth_, lane_;
};

template <>
class PanelStream<uint16_t> {
 public:
  __device__ PanelStream(WeightRing& ring, const std::byte* panel, int begin, int end,
                         int /*depth*/, int lane)
      : ring_(ring), panel_(panel), begin_(begin), end_(end), lane_(lane) {
    for (int ahead = 0; ahead < kPanelStages - 1; ++ahead) Fetch(begin + ahead);
  }

  __device__ LaneWeights<uint16_t> Next(int block) {
    WaitForCopies<kPanelStages - 2>();
    LaneWeights<uint16_t> weights;
    for (int i = 0; i < 4; ++i) {
      weights.words[i] = ring_[(block - begin_) % kPanelStages][i][lane_];
    }
    Fetch(block + kPanelStages - 1);
    return weights;
  }

 private:
  __device__ void Fetch(int block) {
    if (block < end_) {
      const std::byte* from = panel_ + static_cast<int64_t>(block) * kBlockBytes;
      for (int i = 0; i < 4; ++i) {
        CopyAsync16(&ring_[(block - begin_) % kPanelStages][i][lane_],
                    from + WeightOffset(lane_, i));
      }
    }
    CommitCopies();
  }

  WeightRing& ring_;
  const std::byte* panel_;
  int begin_, end_, lane_;
};

// --- Tiles: 32 outputs by 8 rows, a block of the inner dimension a step ---

// sums += the lane's weights of 32 outputs times its inputs of a row, 8 of bf16.
__device__ inline void MultiplyBlock(const LaneWeights<uint16_t>& weights, const uint4& v,
                                     float (&sums)[2][4]) {
  const auto multiply = [&](const uint4& first, const uint4& second, uint32_t x, uint32_t y) {
    const uint32_t b[2] = {x, y};
    const uint32_t low[4] = {first.x, first.y, second.x, second.y};
    const uint32_t high[4] = {first.z, first.w, second.z, second.w};
    MmaBf16(low, b, sums[0]);
    MmaBf16(high, b, sums[1]);
  };
  multiply(weights.words[0], weights.words[1], v.x, v.y);
  multiply(weights.words[2], weights.words[3], v.z, v.w);
}

// Rows and weights of bf16, on tensor cores. mma's outputs and inputs are numbered as the lanes
// have them.
template <int kTiles>
struct TensorTile {
  using Element = uint16_t;
  static constexpr int kRows = kTiles * kTileRows;
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
      const Element* row = row_at(Min(n * kTileRows + lane / 4, count - 1), &scale[n]);
      offset[n] = static_cast<int>(reinterpret_cast<const uint4*>(row) + lane % 4 - x);
      for (int half = 0; half < 2; ++half) {
        for (float& sum : sums[n][half]) sum = 0;
      }
    }
  }

  template <bool kScaled>
  __device__ void Step(const LaneWeights<uint16_t>& w, int block, int /*depth*/) {
    LYNX_UNROLL
    for (int n = 0; n < kTiles; ++n) {
      uint4 v = x[offset[n] + block * (kBlockDepth / 8)];
      if constexpr (kScaled) {
        v = {Scaled(v.x, scale[n]), Scaled(v.y, scale[n]), Scaled(v.z, scale[n]),
             Scaled(v.w, scale[n])};
      }
      MultiplyBlock(w, v, sums[n]);
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
};

// Rows or weights of another type, by fused multiply-adds.
template <typename X>
struct FmaTile {
  using Element = X;
  static constexpr int kRows = kTileRows;
  const X* x;             // Of the first row; each lies
  int offset[kTileRows];  // so many elements further.
  float scale[kTileRows];
  float sums[4][kTileRows];
  int first;  // Of the lane's inputs in a block.

  template <typename RowAt>
  __device__ FmaTile(int lane, int count, const RowAt& row_at) : first(lane % 4 * 8) {
    x = row_at(0, &scale[0]);
    for (int r = 0; r < kTileRows; ++r) {
      offset[r] = static_cast<int>(row_at(Min(r, count - 1), &scale[r]) - x);
      for (int o = 0; o < 4; ++o) sums[o][r] = 0;
    }
  }

  template <bool kScaled, typename W>
  __device__ void Step(const LaneWeights<W>& w, int block, int depth) {
    LYNX_UNROLL
    for (int j = 0; j < 8; ++j) {
      const int k = block * kBlockDepth + first + j;
      LYNX_UNROLL
      for (int r = 0; r < kTileRows; ++r) {
        // What lies behind a row may be anything.
        float value = k < depth ? Widen(x[offset[r] + k]) : 0.0f;
        if constexpr (kScaled) {
          value = value * scale[r];
          if constexpr (sizeof(X) == 2) value = RoundToBf16(value);
        }
        LYNX_UNROLL
        for (int o = 0; o < 4; ++o) sums[o][r] = fmaf(w.At(j, o), value, sums[o][r]);
      }
    }
  }

  __device__ void Store(int /*n*/, int lane, float (*partial)[33]) const {
    for (int r = 0; r < kTileRows; ++r) {
      for (int o = 0; o < 4; ++o) {
        float sum = sums[o][r];
        sum = sum + __shfl_xor_sync(kAllLanes, sum, 1);
        sum = sum + __shfl_xor_sync(kAllLanes, sum, 2);
        if (r / 2 == lane % 4) partial[r][lane / 4 * 4 + o] = sum;
      }
    }
  }
};

// Whether tensor cores multiply rows of X by weights of W.
template <typename X, typename W>
inline constexpr bool kOnTensorCores = std::is_same_v<X, uint16_t>&& std::is_same_v<W, uint16_t>;

// Weights on their way, and when they are used up, sums on theirs.
struct PanelShared {
  union {
    WeightRing ring[kPanelWarps];
    float partial[kPanelWarps][kMoreTiles * kTileRows][33];
  };
};

// One panel times `count` rows, at most Tile::kRows: use(row, the 32 sums of row by warp) once a
// row, by a whole warp whose lane is the output.
template <typename Tile, typename W, bool kScaled, int kTiles, typename RowAt, typename Use>
__device__ void MultiplyPanel(PanelShared& shared, const std::byte* panel, int depth, int count,
                              const RowAt& row_at, const Use& use) {
  const int warp = static_cast<int>(threadIdx.x / kWarp);
  const int lane = static_cast<int>(threadIdx.x % kWarp);
  const int blocks = CeilDiv(depth, kBlockDepth);
  const int begin = SegmentBegin(blocks, warp), end = SegmentBegin(blocks, warp + 1);
  PanelStream<W> stream(shared.ring[warp], panel, begin, end, depth, lane);
  Tile tile(lane, count, row_at);
  LYNX_NO_UNROLL
  for (int block = begin; block < end; ++block) {
    const LaneWeights<W> weights = stream.Next(block);
    tile.template Step<kScaled>(weights, block, depth);
  }
  __syncthreads();  // The last of a ring has been read.
  LYNX_UNROLL
  for (int n = 0; n < kTiles; ++n) tile.Store(n, lane, shared.partial[warp] + n * kTileRows);
  __syncthreads();
  LYNX_NO_UNROLL
  for (int row = warp; row < count; row += kPanelWarps) {
    float sum = 0;
    for (int w = 0; w < kPanelWarps; ++w) sum = sum + shared.partial[w][row][lane];
    use(row, sum);
  }
  __syncthreads();
}

// The same for any number of rows, in passes over the weights.
template <typename X, typename W, bool kScaled, int kMaxTiles, typename RowAt, typename Use>
__device__ void MultiplyRows(PanelShared& shared, const std::byte* panel, int depth, int count,
                             const RowAt& row_at, const Use& use) {
  const auto pass = [&]<typename Tile, int kTiles>(int first) {
    MultiplyPanel<Tile, W, kScaled, kTiles>(
        shared, panel, depth, Min(count - first, Tile::kRows),
        [&](int row, float* scale) { return row_at(first + row, scale); },
        [&](int row, float sum) { use(first + row, sum); });
  };
  if constexpr (!kOnTensorCores<X, W>) {
    for (int first = 0; first < count; first += kTileRows) {
      pass.template operator()<FmaTile<X>, 1>(first);
    }
  } else {
    for (int first = 0; first < count; first += kMaxTiles * kTileRows) {
      const int left = count - first;
      if (left <= 8) {
        pass.template operator()<TensorTile<1>, 1>(first);
      } else if (left <= 16) {
        pass.template operator()<TensorTile<2>, 2>(first);
      } else if (left <= 32 || kMaxTiles == kFewTiles) {
        pass.template operator()<TensorTile<kFewTiles>, kFewTiles>(first);
      } else {
        pass.template operator()<TensorTile<kMaxTiles>, kMaxTiles>(first);
      }
    }
  }
}

}  // namespace lynx::kernels::device
