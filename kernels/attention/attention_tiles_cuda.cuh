#pragma once

#include "kernels/attention/attention_view_cuda.cuh"

// Attention over KV of bf16 for bf16 compute, on tensor cores: AttentionTiles in the place of
// AttentionSplits, with the same splits, workers and order of merging. A block has up to 16
// queries: the heads of a group, of as many rows as there is room for, which follow one another and
// are of one sequence, in that they name the same blocks. Such a run's first row has the block that
// works.
//
// q and the softmax weights are rounded to bf16. A warp has 32 tokens of a split, whose products
// are summed in order, then those of the warps are. What a row does not see has weight 0 and
// changes no bit of it: prompts, decode steps and any mix of them agree.
namespace lynx::kernels::device {

inline constexpr int kTileQueries = 16;
inline constexpr int kTileWarps = kAttentionThreads / 32;
inline constexpr int kWarpTokens = kAttentionSplit / kTileWarps;
inline constexpr int kValuePass = 64;    // Dimensions of V at a time.
inline constexpr int kFoldStride = 68;   // Of a query's, in shared memory.
inline constexpr int kQueryPadding = 8;  // Behind a query, against bank conflicts.
static_assert(kWarpTokens == 32);

inline bool ForAttentionTiles(const AttentionView& view) {
  return view.bf16_kv && view.bf16_y && view.key_dim % 32 == 0 && view.value_dim % kValuePass == 0;
}

// Of one query of the tile.
struct TileQuery {
  int first, position;  // Of what it sees; none where it is not of the run.
  int row, head;
  float largest, total;  // So far: the largest score, the weights' sum.
  float by, so_far_by;   // What a split's, and what the former, is multiplied by.
  bool sees;             // Anything of the split.

  __device__ bool Sees(int token) const { return token >= first && token <= position; }
};

struct AttentionTileShared {
  uint16_t* q;     // [kTileQueries, key_dim + kQueryPadding]
  float* sums;     // [kTileQueries, value_dim] Of the worker's splits so far.
  float* fold;     // [kTileWarps, kTileQueries, kFoldStride]
  float* largest;  // [kTileWarps, kTileQueries]
  float* totals;   // [kTileWarps, kTileQueries]
  TileQuery* queries;
  uint32_t* broken;  // [kTileWarps] A bit a token: of V, not finite.

  __host__ __device__ static size_t Bytes(int key_dim, int value_dim) {
    return sizeof(uint16_t) * kTileQueries * static_cast<size_t>(key_dim + kQueryPadding) +
           sizeof(float) * kTileQueries *
               static_cast<size_t>(value_dim + kTileWarps * (kFoldStride + 2)) +
           sizeof(TileQuery) * kTileQueries + sizeof(uint32_t) * kTileWarps;
  }
  __device__ AttentionTileShared(unsigned char* memory, int key_dim, int value_dim)
      : q(reinterpret_cast<uint16_t*>(memory)),
        sums(reinterpret_cast<float*>(q + kTileQueries * (key_dim + kQueryPadding))),
        fold(sums + kTileQueries * value_dim),
        largest(fold + kTileWarps * kTileQueries * kFoldStride),
        totals(largest + kTileWarps * kTileQueries),
        queries(reinterpret_cast<TileQuery*>(totals + kTileWarps * kTileQueries)),
        broken(reinterpret_cast<uint32_t*>(queries + kTileQueries)) {}
};

__device__ inline uint32_t PackBf16(float low, float high) {
  return uint32_t{F32ToBf16(low)} | uint32_t{F32ToBf16(high)} << 16;
}

// Zeros in place of what is not finite; whether there was any.
__device__ inline bool MakeFinite(uint32_t& pair) {
  const bool low = (pair & 0x7f80u) == 0x7f80u, high = (pair & 0x7f800000u) == 0x7f800000u;
  if (low) pair &= 0xffff0000u;
  if (high) pair &= 0x0000ffffu;
  return low || high;
}

// Rows of a tile that follow one another and name the same blocks.
struct TileRun {
  const int32_t* blocks;
  int first, position;      // The outermost of what its rows see;
  int all_from, all_until;  // what all of them see.
};

// One warp's 32 tokens of a split, from token `start` on, times the queries.
struct WarpTokens {
  const std::byte* kv[2];  // Of the KV head, in the blocks of each 16 tokens.
  int start;

  __device__ WarpTokens(const AttentionView& view, const TileRun& run, int first_token,
                        int64_t head_offset)
      : start(first_token) {
    for (int half = 0; half < 2; ++half) {
      const int token = start + 16 * half;
      const bool there = token <= run.position && token + 15 >= run.first;
      const int64_t block = there ? run.blocks[token / kAttentionBlockTokens] : 0;
      kv[half] = view.kv + block * view.block_stride_bytes + head_offset * 2;
    }
  }
  // 8 elements of a row of K or V, of a token of one half; zeros where nobody sees it.
  __device__ uint4 Load(const TileRun& run, int half, int token, int64_t element) const {
    const int at = start + 16 * half + token;
    if (at < run.first || at > run.position) return uint4{0, 0, 0, 0};
    return *reinterpret_cast<const uint4*>(kv[half] + element * 2);
  }
};

static __global__ void __launch_bounds__(kAttentionThreads, 2)
    AttentionTiles(AttentionView view, int rows_a_tile) {
  LYNX_DYNAMIC_SHARED(unsigned char, memory);
  const AttentionTileShared shared(memory, view.key_dim, view.value_dim);
  const int thread = static_cast<int>(threadIdx.x);
  const int warp = thread / 32, lane = thread % 32;
  const int g = lane / 4, t = lane % 4;  // As fragments of mma number lanes.
  const int worker = static_cast<int>(blockIdx.x);
  const int group = view.heads / view.kv_heads;
  const int chunks = CeilDiv(group, kTileQueries);
  const int kv_head = static_cast<int>(blockIdx.y) / chunks;
  const int first_head = static_cast<int>(blockIdx.y) % chunks * kTileQueries;
  const int heads = Min(group - first_head, kTileQueries);  // Of a row, in this block.
  const int row = static_cast<int>(blockIdx.z), tile_row = row / rows_a_tile * rows_a_tile;
  if (row > tile_row && view.rows[row].blocks == view.rows[row - 1].blocks) return;  // Another's.
  const int64_t head_offset = kv_head * view.head_offset;
  const int value_row = view.value_offset == 0 ? view.key_dim : view.value_dim;
  const int q_stride = view.key_dim + kQueryPadding;

  TileRun run;
  const AttentionRow& leader = view.rows[row];
  run.blocks = leader.blocks;
  run.first = run.all_from = leader.first;
  run.position = run.all_until = leader.position;
  const int tile_end = Min(tile_row + rows_a_tile, view.row_count);
  int end = row + 1;
  for (; end < tile_end && view.rows[end].blocks == run.blocks; ++end) {
    const AttentionRow& other = view.rows[end];
    run.first = Min(run.first, other.first);
    run.position = Max(run.position, other.position);
    run.all_from = Max(run.all_from, other.first);
    run.all_until = Min(run.all_until, other.position);
  }
  const int first_split = run.first / kAttentionSplit;
  const int last_split = run.position / kAttentionSplit;
  const int my_split =
      first_split +
      (worker + kAttentionWorkers - first_split % kAttentionWorkers) % kAttentionWorkers;
  if (my_split > last_split) return;

  const int queries = (end - row) * heads;
  if (thread < kTileQueries) {
    TileQuery& query = shared.queries[thread];
    query = {1, 0, 0, 0, -__builtin_huge_valf(), 0, 0, 0, false};
    if (thread < queries) {
      query.row = row + thread / heads;
      query.head = kv_head * group + first_head + thread % heads;
      query.first = view.rows[query.row].first;
      query.position = view.rows[query.row].position;
    }
  }
  for (int i = thread; i < kTileQueries * view.value_dim; i += kAttentionThreads) {
    shared.sums[i] = 0;
  }
  __syncthreads();
  for (int i = thread; i < kTileQueries * view.key_dim; i += kAttentionThreads) {
    const int m = i / view.key_dim, d = i % view.key_dim;
    const TileQuery& query = shared.queries[m];
    shared.q[m * q_stride + d] =
        m < queries ? F32ToBf16(view.q[query.row * view.q_stride +
                                       static_cast<int64_t>(query.head) * view.key_dim + d])
                    : uint16_t{0};
  }
  __syncthreads();

  for (int split = my_split; split <= last_split; split += kAttentionWorkers) {
    const int start = split * kAttentionSplit;
    const WarpTokens tokens(view, run, start + warp * kWarpTokens, head_offset);
    // Scores: lane's are of queries g and g + 8, of tokens 8 n + 2 t and the next one.
    float s[4][4];
    LYNX_UNROLL
    for (int n = 0; n < 4; ++n) {
      LYNX_UNROLL
      for (int i = 0; i < 4; ++i) s[n][i] = 0;
    }
    for (int d = 8 * t; d < view.key_dim; d += 32) {
      const uint4 low = *reinterpret_cast<const uint4*>(shared.q + g * q_stride + d);
      const uint4 high = *reinterpret_cast<const uint4*>(shared.q + (g + 8) * q_stride + d);
      const uint32_t even[4] = {low.x, high.x, low.y, high.y};
      const uint32_t odd[4] = {low.z, high.z, low.w, high.w};
      LYNX_UNROLL
      for (int n = 0; n < 4; ++n) {
        const int token = n % 2 * 8 + g;
        const uint4 k = tokens.Load(run, n / 2, token, int64_t{token} * view.key_dim + d);
        const uint32_t first[2] = {k.x, k.y}, second[2] = {k.z, k.w};
        MmaBf16(even, first, s[n]);
        MmaBf16(odd, second, s[n]);
      }
    }

    // The largest of each query, of the warp's tokens and then of all.
    const auto sees = [&](int n, int i) {
      return shared.queries[g + i / 2 * 8].Sees(tokens.start + 8 * n + 2 * t + i % 2);
    };
    float largest[2] = {-__builtin_huge_valf(), -__builtin_huge_valf()};
    LYNX_UNROLL
    for (int n = 0; n < 4; ++n) {
      LYNX_UNROLL
      for (int i = 0; i < 4; ++i) {
        s[n][i] = s[n][i] * view.scale;
        if (sees(n, i)) largest[i / 2] = fmaxf(largest[i / 2], s[n][i]);
      }
    }
    LYNX_UNROLL
    for (int half = 0; half < 2; ++half) {
      largest[half] = fmaxf(largest[half], __shfl_xor_sync(kAllLanes, largest[half], 1));
      largest[half] = fmaxf(largest[half], __shfl_xor_sync(kAllLanes, largest[half], 2));
      if (t == 0) shared.largest[warp * kTileQueries + g + half * 8] = largest[half];
    }
    if (thread < kTileWarps) shared.broken[thread] = 0;
    __syncthreads();
    float total[2] = {0, 0};
    LYNX_UNROLL
    for (int half = 0; half < 2; ++half) {
      for (int w = 0; w < kTileWarps; ++w) {
        largest[half] = fmaxf(largest[half], shared.largest[w * kTileQueries + g + half * 8]);
      }
    }
    LYNX_UNROLL
    for (int n = 0; n < 4; ++n) {
      LYNX_UNROLL
      for (int i = 0; i < 4; ++i) {
        s[n][i] = sees(n, i) ? expf(s[n][i] - largest[i / 2]) : 0.0f;
        total[i / 2] = total[i / 2] + s[n][i];
      }
    }
    LYNX_UNROLL
    for (int half = 0; half < 2; ++half) {
      total[half] = total[half] + __shfl_xor_sync(kAllLanes, total[half], 1);
      total[half] = total[half] + __shfl_xor_sync(kAllLanes, total[half], 2);
      if (t == 0) shared.totals[warp * kTileQueries + g + half * 8] = total[half];
    }
    uint32_t weights[2][4];  // Of each 16 tokens, as a left operand.
    LYNX_UNROLL
    for (int half = 0; half < 2; ++half) {
      LYNX_UNROLL
      for (int i = 0; i < 4; ++i) {
        const float(&from)[4] = s[2 * half + i / 2];
        weights[half][i] = i % 2 == 0 ? PackBf16(from[0], from[1]) : PackBf16(from[2], from[3]);
      }
    }
    __syncthreads();
    if (thread < kTileQueries) {
      TileQuery& query = shared.queries[thread];
      query.sees = query.first <= start + kAttentionSplit - 1 && query.position >= start &&
                   query.first <= query.position;
      float split_largest = -__builtin_huge_valf(), split_total = 0;
      for (int w = 0; w < kTileWarps; ++w) {
        split_largest = fmaxf(split_largest, shared.largest[w * kTileQueries + thread]);
        split_total = split_total + shared.totals[w * kTileQueries + thread];
      }
      if (query.sees) {
        const float both = fmaxf(query.largest, split_largest);
        query.by = expf(split_largest - both);
        query.so_far_by = expf(query.largest - both);  // 0 where nothing came before.
        query.largest = both;
        query.total = fmaf(query.total, query.so_far_by, split_total * query.by);
      }
    }

    // Values, where a companion of a row may see what the row must not be spoilt by: numbers that
    // are not finite are left out, and spoil those who see them in the end.
    const bool all_see = start >= run.all_from && start + kAttentionSplit - 1 <= run.all_until;
    for (int pass = 0; pass < view.value_dim; pass += kValuePass) {
      float sums[8][4];  // Of queries g and g + 8, dimensions 16 t + n and 16 t + 8 + n.
      LYNX_UNROLL
      for (int n = 0; n < 8; ++n) {
        LYNX_UNROLL
        for (int i = 0; i < 4; ++i) sums[n][i] = 0;
      }
      LYNX_UNROLL
      for (int half = 0; half < 2; ++half) {
        uint4 v[4];  // Of tokens 2 t, 2 t + 1, 2 t + 8 and 2 t + 9: dimensions 8 g .. 8 g + 7.
        LYNX_UNROLL
        for (int i = 0; i < 4; ++i) {
          const int token = 2 * t + i / 2 * 8 + i % 2;
          v[i] = tokens.Load(run, half, token,
                             view.value_offset + int64_t{token} * value_row + pass + 8 * g);
          if (!all_see) {
            const bool x = MakeFinite(v[i].x), y = MakeFinite(v[i].y);
            const bool z = MakeFinite(v[i].z), w = MakeFinite(v[i].w);
            if (x || y || z || w) atomicOr(&shared.broken[warp], 1u << (16 * half + token));
          }
        }
        const auto pair_up = [&](int n, int i) {
          const uint4 &a = v[i], &b = v[i + 1];
          const uint32_t one = n < 2 ? a.x : n < 4 ? a.y : n < 6 ? a.z : a.w;
          const uint32_t two = n < 2 ? b.x : n < 4 ? b.y : n < 6 ? b.z : b.w;
          return n % 2 == 0 ? (one & 0xffffu) | two << 16 : one >> 16 | (two & 0xffff0000u);
        };
        LYNX_UNROLL
        for (int n = 0; n < 8; ++n) {
          const uint32_t b[2] = {pair_up(n, 0), pair_up(n, 2)};
          MmaBf16(weights[half], b, sums[n]);
        }
      }
      LYNX_UNROLL
      for (int i = 0; i < 4; ++i) {
        float* to =
            shared.fold + (warp * kTileQueries + g + i / 2 * 8) * kFoldStride + 16 * t + i % 2 * 8;
        LYNX_UNROLL
        for (int n = 0; n < 8; n += 4) {
          *reinterpret_cast<float4*>(to + n) =
              float4{sums[n][i], sums[n + 1][i], sums[n + 2][i], sums[n + 3][i]};
        }
      }
      __syncthreads();
      for (int i = thread; i < kTileQueries * kValuePass; i += kAttentionThreads) {
        const int m = i / kValuePass, d = i % kValuePass;
        const TileQuery& query = shared.queries[m];
        if (!query.sees) continue;
        float sum = 0;
        for (int w = 0; w < kTileWarps; ++w) {
          sum = sum + shared.fold[(w * kTileQueries + m) * kFoldStride + d];
        }
        float& so_far = shared.sums[m * view.value_dim + pass + d];
        so_far = fmaf(so_far, query.so_far_by, sum * query.by);
      }
      __syncthreads();
    }
    if (!all_see && thread < kTileQueries) {
      TileQuery& query = shared.queries[thread];
      for (int token = 0; token < kAttentionSplit; ++token) {
        if ((shared.broken[token / 32] >> token % 32 & 1u) != 0 && query.Sees(start + token)) {
          query.total = __uint_as_float(0x7fc00000u);
        }
      }
    }
    __syncthreads();
  }

  for (int i = thread; i < queries * view.value_dim; i += kAttentionThreads) {
    const TileQuery& query = shared.queries[i / view.value_dim];
    view.PartialOf(query.row, query.head, worker)[i % view.value_dim] = shared.sums[i];
  }
  if (thread < queries) {
    const TileQuery& query = shared.queries[thread];
    float* partial = view.PartialOf(query.row, query.head, worker) + view.value_dim;
    partial[0] = query.largest;
    partial[1] = query.total;
  }
}

inline void LaunchAttentionTiles(const AttentionView& view, void* stream) {
  const int group = view.heads / view.kv_heads;
  const int rows_a_tile = Max(kTileQueries / group, 1);
  const size_t bytes = AttentionTileShared::Bytes(view.key_dim, view.value_dim);
  cudaFuncSetAttribute(&AttentionTiles, cudaFuncAttributeMaxDynamicSharedMemorySize,
                       static_cast<int>(bytes));
  const dim3 grid{kAttentionWorkers,
                  static_cast<unsigned>(view.kv_heads * CeilDiv(group, kTileQueries)),
                  static_cast<unsigned>(view.row_count)};
  LYNX_LAUNCH(AttentionTiles, grid, kAttentionThreads, bytes, stream, view, rows_a_tile);
}

}  // namespace lynx::kernels::device
