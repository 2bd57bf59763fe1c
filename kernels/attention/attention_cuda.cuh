#pragma once

#include "kernels/attention/attention_tiles_cuda.cuh"
#include "kernels/attention/attention_view_cuda.cuh"
#include "kernels/attention/latent_attention_args.h"
#include "kernels/attention/paged_attention_args.h"
#include "kernels/core/device.cuh"
#include "kernels/core/device_kernels.h"

// Attention of rows one by one, in two launches:
//
//   AttentionSplits   a block for a row, a KV head and one of kAttentionWorkers workers: the worker
//                     takes every so manieth split of 256 tokens, at fixed positions, and merges
//                     what it makes of them in order
//   AttentionMerge    a block for a row and a head: what the workers have, in order, and the sink
//
// With bf16 in and out, AttentionTiles takes the place of the first (attention_tiles_cuda.cuh).
//
// So a row's bits are made of its q, its positions and its KV alone. Queries of a KV head share
// what they load of it, up to eight at a time.
namespace lynx::kernels::device {

inline constexpr int kAttentionQueries = 8;  // That share a load.
inline constexpr int kAttentionChunk = 8;    // Dimensions of V that a thread sums.

// Elements [at, at + 8) of a row of `count` to to[8], zeros behind; in one load or two where the
// row is aligned.
template <typename T, bool kAligned>
__device__ void LoadChunk(const T* row, int at, int count, float (&to)[kAttentionChunk]) {
  if constexpr (kAligned && sizeof(T) == 2) {
    const uint4 v = *reinterpret_cast<const uint4*>(row + at);
    const uint32_t words[4] = {v.x, v.y, v.z, v.w};
    LYNX_UNROLL
    for (int i = 0; i < 4; ++i) {
      to[2 * i] = Low(words[i]);
      to[2 * i + 1] = High(words[i]);
    }
  } else if constexpr (kAligned) {
    const float4 a = reinterpret_cast<const float4*>(row + at)[0];
    const float4 b = reinterpret_cast<const float4*>(row + at)[1];
    to[0] = a.x, to[1] = a.y, to[2] = a.z, to[3] = a.w;
    to[4] = b.x, to[5] = b.y, to[6] = b.z, to[7] = b.w;
  } else {
    LYNX_UNROLL
    for (int i = 0; i < kAttentionChunk; ++i) {
      to[i] = at + i < count ? Widen(row[at + i]) : 0.0f;
    }
  }
}

// What the block's threads share; `key_dim` and `value_dim` rounded up to chunks.
struct AttentionShared {
  float* q;        // [kAttentionQueries, key_dim]
  float* sums;     // [kAttentionQueries, value_dim] Of the worker's splits so far.
  float* weights;  // [kAttentionQueries, kAttentionSplit]
  float* fold;     // [kAttentionThreads * kAttentionChunk]
  float* state;  // Of each query: [0] the largest score, [1] the weights' sum, so far; [2], [3] the
                 // same of a split; [4] what a split's, and [5] the former, is to be multiplied by.

  __host__ __device__ static int Floats(int key_dim, int value_dim) {
    return kAttentionQueries * (key_dim + value_dim + kAttentionSplit + 6) +
           kAttentionThreads * kAttentionChunk;
  }
  __device__ AttentionShared(float* memory, int key_dim, int value_dim)
      : q(memory),
        sums(q + kAttentionQueries * key_dim),
        weights(sums + kAttentionQueries * value_dim),
        fold(weights + kAttentionQueries * kAttentionSplit),
        state(fold + kAttentionThreads * kAttentionChunk) {}
};

__host__ __device__ inline int ToChunks(int dim) {
  return CeilDiv(dim, kAttentionChunk) * kAttentionChunk;
}

template <typename T, bool kAligned, int kQueries>
__global__ void __launch_bounds__(kAttentionThreads, sizeof(T) == 4 ? 1 : 2)
    AttentionSplits(AttentionView view) {
  LYNX_DYNAMIC_SHARED(float, memory);
  const int key_dim = ToChunks(view.key_dim), value_dim = ToChunks(view.value_dim);
  const AttentionShared shared(memory, key_dim, value_dim);
  const int thread = static_cast<int>(threadIdx.x);
  const int warp = thread / 32, lane = thread % 32;
  const int worker = static_cast<int>(blockIdx.x), kv_head = static_cast<int>(blockIdx.y);
  const int64_t row = blockIdx.z;
  const int group = view.heads / view.kv_heads;
  const AttentionRow at = view.rows[row];
  const int first_split = at.first / kAttentionSplit, last_split = at.position / kAttentionSplit;
  const int my_split =
      first_split +
      (worker + kAttentionWorkers - first_split % kAttentionWorkers) % kAttentionWorkers;
  if (my_split > last_split) return;  // Nobody asks what this worker has.
  const int chunks = value_dim / kAttentionChunk;
  const int parts = kAttentionThreads / chunks;  // Into which a split's tokens fall, for values.
  const auto token_row = [&](int token, int64_t offset, int dim) {
    const int64_t block = at.blocks[token / kAttentionBlockTokens];
    return reinterpret_cast<const T*>(view.kv + block * view.block_stride_bytes) +
           kv_head * view.head_offset + offset +
           static_cast<int64_t>(token % kAttentionBlockTokens) * dim;
  };

  for (int first_query = 0; first_query < group; first_query += kQueries) {
    const int queries = Min(kQueries, group - first_query);
    const int first_head = kv_head * group + first_query;
    for (int i = thread; i < kQueries * key_dim; i += kAttentionThreads) {
      const int query = i / key_dim, d = i % key_dim;
      shared.q[i] = query < queries && d < view.key_dim
                        ? view.q[row * view.q_stride +
                                 static_cast<int64_t>(first_head + query) * view.key_dim + d]
                        : 0.0f;
    }
    for (int i = thread; i < kQueries * value_dim; i += kAttentionThreads) shared.sums[i] = 0;
    if (thread < kQueries) {
      shared.state[thread * 6] = -__builtin_huge_valf();
      shared.state[thread * 6 + 1] = 0;
    }
    __syncthreads();

    for (int split = my_split; split <= last_split; split += kAttentionWorkers) {
      const int start = split * kAttentionSplit;
      const int begin = Max(at.first - start, 0);
      const int end = Min(at.position + 1 - start, kAttentionSplit);

      // Scores: a token a thread.
      float scores[kQueries];
      LYNX_UNROLL
      for (int i = 0; i < kQueries; ++i) scores[i] = 0;
      const bool visible = thread >= begin && thread < end;
      if (visible) {
        const T* key = token_row(start + thread, 0, view.key_dim);
        for (int d = 0; d < key_dim; d += kAttentionChunk) {
          float k[kAttentionChunk];
          LoadChunk<T, kAligned>(key, d, view.key_dim, k);
          LYNX_UNROLL
          for (int i = 0; i < kQueries; ++i) {
            LYNX_UNROLL
            for (int j = 0; j < kAttentionChunk; ++j) {
              scores[i] = fmaf(shared.q[i * key_dim + d + j], k[j], scores[i]);
            }
          }
        }
      }
      LYNX_UNROLL
      for (int i = 0; i < kQueries; ++i) {
        shared.weights[i * kAttentionSplit + thread] = scores[i] * view.scale;
      }
      __syncthreads();

      // Weights: a query a warp.
      for (int i = warp; i < queries; i += kAttentionThreads / 32) {
        float* weights = shared.weights + i * kAttentionSplit;
        float largest = -__builtin_huge_valf();
        for (int t = lane; t < kAttentionSplit; t += 32) {
          if (t >= begin && t < end) largest = fmaxf(largest, weights[t]);
        }
        largest = WarpMax(largest);
        float total = 0;
        for (int t = lane; t < kAttentionSplit; t += 32) {
          if (t < begin || t >= end) continue;
          weights[t] = expf(weights[t] - largest);
          total = total + weights[t];
        }
        total = WarpSum(total);
        if (lane == 0) {
          float* state = shared.state + i * 6;
          const float both = fmaxf(state[0], largest);
          state[4] = expf(largest - both);
          state[5] = expf(state[0] - both);  // 0 where nothing came before.
          state[0] = both;
          state[1] = fmaf(state[1], state[5], total * state[4]);
        }
      }
      __syncthreads();

      // Values: thread c + chunks * p has chunk c, of the tokens of part p.
      const int chunk = thread % chunks, part = thread / chunks;
      float sums[kQueries][kAttentionChunk];
      LYNX_UNROLL
      for (int i = 0; i < kQueries; ++i) {
        LYNX_UNROLL
        for (int j = 0; j < kAttentionChunk; ++j) sums[i][j] = 0;
      }
      if (part < parts) {
        LYNX_NO_UNROLL
        for (int t = part; t < end; t += parts) {
          if (t < begin) continue;
          float v[kAttentionChunk];
          LoadChunk<T, kAligned>(token_row(start + t, view.value_offset,
                                           view.value_offset == 0 ? view.key_dim : view.value_dim),
                                 chunk * kAttentionChunk, view.value_dim, v);
          LYNX_UNROLL
          for (int i = 0; i < kQueries; ++i) {
            const float weight = i < queries ? shared.weights[i * kAttentionSplit + t] : 0.0f;
            LYNX_UNROLL
            for (int j = 0; j < kAttentionChunk; ++j) sums[i][j] = fmaf(weight, v[j], sums[i][j]);
          }
        }
      }
      LYNX_UNROLL
      for (int i = 0; i < kQueries; ++i) {
        if (i >= queries) break;
        if (part < parts) {
          LYNX_UNROLL
          for (int j = 0; j < kAttentionChunk; ++j) {
            shared.fold[part * value_dim + chunk * kAttentionChunk + j] = sums[i][j];
          }
        }
        __syncthreads();
        for (int d = thread; d < value_dim; d += kAttentionThreads) {
          float sum = 0;
          for (int p = 0; p < parts; ++p) sum = sum + shared.fold[p * value_dim + d];
          float& so_far = shared.sums[i * value_dim + d];
          so_far = fmaf(so_far, shared.state[i * 6 + 5], sum * shared.state[i * 6 + 4]);
        }
        __syncthreads();
      }
    }

    for (int i = thread; i < queries * value_dim; i += kAttentionThreads) {
      const int query = i / value_dim, d = i % value_dim;
      if (d < view.value_dim) view.PartialOf(row, first_head + query, worker)[d] = shared.sums[i];
    }
    if (thread < queries) {
      float* partial = view.PartialOf(row, first_head + thread, worker) + view.value_dim;
      partial[0] = shared.state[thread * 6];
      partial[1] = shared.state[thread * 6 + 1];
    }
    __syncthreads();
  }
}

template <typename Out>
__global__ void __launch_bounds__(kAttentionThreads) AttentionMerge(AttentionView view) {
  const int head = static_cast<int>(blockIdx.x);
  const int64_t row = blockIdx.y;
  const AttentionRow at = view.rows[row];
  const int first_split = at.first / kAttentionSplit, last_split = at.position / kAttentionSplit;
  const float sink = view.sinks == nullptr ? 0 : view.sinks[head];
  // From the worker of the first split on; those after the last have nothing.
  const int workers = Min(last_split - first_split + 1, kAttentionWorkers);
  const auto partial_of = [&](int i) {
    return view.PartialOf(row, head, (first_split + i) % kAttentionWorkers);
  };
  float largest = view.sinks == nullptr ? -__builtin_huge_valf() : sink;
  for (int i = 0; i < workers; ++i) largest = fmaxf(largest, partial_of(i)[view.value_dim]);
  float total = view.sinks == nullptr ? 0.0f : expf(sink - largest);
  for (int i = 0; i < workers; ++i) {
    const float* partial = partial_of(i) + view.value_dim;
    total = fmaf(partial[1], expf(partial[0] - largest), total);
  }
  Out* y = static_cast<Out*>(view.y) + row * view.y_stride + head * view.y_head_stride;
  for (int d = static_cast<int>(threadIdx.x); d < view.value_dim; d += kAttentionThreads) {
    float sum = 0;
    for (int i = 0; i < workers; ++i) {
      const float* partial = partial_of(i);
      sum = fmaf(partial[d], expf(partial[view.value_dim] - largest), sum);
    }
    y[d] = Narrow<Out>(sum / total);
  }
}

template <typename T, bool kAligned, int kQueries>
void LaunchSplits(const AttentionView& view, void* stream) {
  const auto kernel = &AttentionSplits<T, kAligned, kQueries>;
  const size_t bytes = sizeof(float) * static_cast<size_t>(AttentionShared::Floats(
                                           ToChunks(view.key_dim), ToChunks(view.value_dim)));
  if (bytes > 48 << 10) {
    cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                         static_cast<int>(bytes));
  }
  const dim3 grid{kAttentionWorkers, static_cast<unsigned>(view.kv_heads),
                  static_cast<unsigned>(view.row_count)};
  LYNX_LAUNCH((AttentionSplits<T, kAligned, kQueries>), grid, kAttentionThreads, bytes, stream,
              view);
}

template <typename T, bool kAligned>
void LaunchSplitsOf(const AttentionView& view, void* stream) {
  const int group = view.heads / view.kv_heads;
  if (group == 1) {
    LaunchSplits<T, kAligned, 1>(view, stream);
  } else if (group <= 4) {
    LaunchSplits<T, kAligned, 4>(view, stream);
  } else {
    LaunchSplits<T, kAligned, kAttentionQueries>(view, stream);
  }
}

template <typename T>
void LaunchAttention(const AttentionView& view, void* stream) {
  // Of a row of K or V, where a head begins at a multiple of 16 bytes.
  constexpr int kMultiple = 16 / static_cast<int>(sizeof(T));
  const bool aligned = reinterpret_cast<uintptr_t>(view.kv) % 16 == 0 &&
                       view.block_stride_bytes % 16 == 0 && view.key_dim % kMultiple == 0 &&
                       view.key_dim % kAttentionChunk == 0 && view.value_dim % kAttentionChunk == 0;
  if (aligned && ForAttentionTiles(view)) {
    LaunchAttentionTiles(view, stream);
  } else if (aligned) {
    LaunchSplitsOf<T, true>(view, stream);
  } else {
    LaunchSplitsOf<T, false>(view, stream);
  }
  const dim3 grid{static_cast<unsigned>(view.heads), static_cast<unsigned>(view.row_count), 1};
  if (view.bf16_y) {
    LYNX_LAUNCH(AttentionMerge<uint16_t>, grid, kAttentionThreads, 0, stream, view);
  } else {
    LYNX_LAUNCH(AttentionMerge<float>, grid, kAttentionThreads, 0, stream, view);
  }
}

// By at most as many rows at a time as a grid has, and the scratch memory.
inline int QueueAttention(AttentionView view, const DeviceQueue& queue) {
  constexpr int64_t kMostRows = 65535;
  const auto row_bytes =
      static_cast<int64_t>(sizeof(float)) * view.heads * kAttentionWorkers * view.PartialStride();
  const int64_t rows = Min(static_cast<int64_t>(queue.scratch_bytes) / row_bytes, kMostRows);
  if (queue.scratch == nullptr || rows == 0) return kScratchTooSmall;
  view.partial = reinterpret_cast<float*>(queue.scratch);
  const int64_t all = view.row_count;
  for (int64_t first = 0; first < all; first += rows) {
    AttentionView part = view;
    part.q += first * view.q_stride;
    part.rows += first;
    part.y = static_cast<std::byte*>(view.y) + first * view.y_stride * (view.bf16_y ? 2 : 4);
    part.row_count = static_cast<int>(Min(rows, all - first));
    if (view.bf16_kv) {
      LaunchAttention<uint16_t>(part, queue.stream);
    } else {
      LaunchAttention<float>(part, queue.stream);
    }
  }
  return static_cast<int>(cudaGetLastError());
}

inline int QueuePagedAttention(const PagedAttentionArgs& args, const DeviceQueue& queue) {
  const int64_t head = kAttentionBlockTokens * args.head_dim;
  return QueueAttention({.q = args.q,
                         .rows = args.rows,
                         .kv = args.kv,
                         .y = args.y,
                         .sinks = args.sinks,
                         .block_stride_bytes = args.block_stride_bytes,
                         .q_stride = args.q_stride,
                         .y_stride = args.y_stride,
                         .y_head_stride = args.head_dim,
                         .value_offset = args.kv_heads * head,
                         .head_offset = head,
                         .row_count = static_cast<int>(args.row_count),
                         .heads = static_cast<int>(args.heads),
                         .kv_heads = static_cast<int>(args.kv_heads),
                         .key_dim = static_cast<int>(args.head_dim),
                         .value_dim = static_cast<int>(args.head_dim),
                         .scale = args.scale,
                         .bf16_kv = args.kv_dtype == DType::kBf16,
                         .bf16_y = args.compute_dtype == DType::kBf16,
                         .partial = nullptr},
                        queue);
}

// All heads share a token's latent, which is key and value at once.
inline int QueueLatentAttention(const LatentAttentionArgs& args, const DeviceQueue& queue) {
  return QueueAttention({.q = args.q,
                         .rows = args.rows,
                         .kv = args.kv,
                         .y = args.y,
                         .sinks = nullptr,
                         .block_stride_bytes = args.block_stride_bytes,
                         .q_stride = args.q_stride,
                         .y_stride = args.y_stride,
                         .y_head_stride = args.y_head_stride,
                         .value_offset = 0,
                         .head_offset = 0,
                         .row_count = static_cast<int>(args.row_count),
                         .heads = static_cast<int>(args.heads),
                         .kv_heads = 1,
                         .key_dim = static_cast<int>(args.latent_dim + args.rope_dim),
                         .value_dim = static_cast<int>(args.latent_dim),
                         .scale = args.scale,
                         .bf16_kv = args.kv_dtype == DType::kBf16,
                         .bf16_y = args.compute_dtype == DType::kBf16,
                         .partial = nullptr},
                        queue);
}

}  // namespace lynx::kernels::device
