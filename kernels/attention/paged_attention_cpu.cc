#include "kernels/attention/paged_attention_backends.h"
#include "kernels/core/simd.h"
#include "kernels/gemm/dot_tile.h"

namespace lynx::kernels::LYNX_KERNEL_ISA {
namespace {

static_assert(kAttentionBlockTokens == kLanes, "one lane per token of a block");

constexpr int kMaxVectors = static_cast<int>(kMaxHeadDim / kLanes);

// Softmax and weighted sum of one query over the blocks seen so far.
struct Query {
  const float* q = nullptr;
  float* y = nullptr;
  int32_t position = 0;
  float largest = 0;
  F32x16 total;             // Lane i: tokens i, i + 16, ...
  F32x16 sum[kMaxVectors];  // [head_dim]
};

template <typename T>
struct Block {
  const T* k;  // [16, head_dim]
  const T* v;  // [16, head_dim]
};

template <typename T>
Block<T> BlockAt(const PagedAttentionArgs& args, int32_t block, int64_t kv_head) {
  const auto* base = reinterpret_cast<const T*>(args.kv + block * args.block_stride_bytes);
  const int64_t head = kAttentionBlockTokens * args.head_dim;
  return {base + kv_head * head, base + (args.kv_heads + kv_head) * head};
}

// Vectors of V that AddValues takes at once: enough independent sums to hide the latency of one.
#if defined(__AVX512F__)
constexpr int kValueVectors = 4;
#else
constexpr int kValueVectors = 2;
#endif

// sum[d .. d + D) = sum * decay + weighted V of the first `tokens` tokens, for N queries.
template <int N, int D, typename T>
inline void AddValues(int64_t head_dim, const T* v, int tokens, const float (*weights)[kLanes],
                      const F32x16* decay, Query* const* query, int64_t d) {
  F32x16 sum[N][D];
#pragma GCC unroll 16
  for (int i = 0; i < N; ++i) {
#pragma GCC unroll 16
    for (int j = 0; j < D; ++j) sum[i][j] = Mul(query[i]->sum[d + j], decay[i]);
  }
  for (int t = 0; t < tokens; ++t) {
    F32x16 value[D];
#pragma GCC unroll 16
    for (int j = 0; j < D; ++j) value[j] = Load(v + t * head_dim + (d + j) * kLanes);
#pragma GCC unroll 16
    for (int i = 0; i < N; ++i) {
      const F32x16 weight = Set1(weights[i][t]);
#pragma GCC unroll 16
      for (int j = 0; j < D; ++j) sum[i][j] = MulAdd(weight, value[j], sum[i][j]);
    }
  }
#pragma GCC unroll 16
  for (int i = 0; i < N; ++i) {
#pragma GCC unroll 16
    for (int j = 0; j < D; ++j) query[i]->sum[d + j] = sum[i][j];
  }
}

// Folds the first `tokens` tokens of a block into N queries. Each query sees the same operations
// whatever N is.
template <int N, typename T>
void Absorb(const PagedAttentionArgs& args, const Block<T>& block, int tokens,
            Query* const* query) {
  const float* q[N];
  for (int i = 0; i < N; ++i) q[i] = query[i]->q;
  float scores[N][kLanes];
  for (int t = 0; t < tokens; t += kTileColumns) {
    const int columns = tokens - t < kTileColumns ? tokens - t : kTileColumns;
    float tile[N * kTileColumns];
    DotTileAny(q, N, block.k + t * args.head_dim, columns, args.head_dim, tile);
    for (int i = 0; i < N; ++i) {
      for (int c = 0; c < columns; ++c) {
        scores[i][t + c] = tile[i * kTileColumns + c] * args.scale;
      }
    }
  }
  float weights[N][kLanes];
  F32x16 decay[N];
  for (int i = 0; i < N; ++i) {
    for (int t = tokens; t < kLanes; ++t) scores[i][t] = -__builtin_inff();
    const F32x16 score = Load(scores[i]);
    const float block_largest = ReduceMax(score);
    const float largest = block_largest > query[i]->largest ? block_largest : query[i]->largest;
    decay[i] = Exp(Set1(query[i]->largest - largest));
    const F32x16 weight = Exp(Sub(score, Set1(largest)));
    Store(weights[i], weight);
    query[i]->total = MulAdd(query[i]->total, decay[i], weight);
    query[i]->largest = largest;
  }
  const int64_t whole = args.head_dim / kLanes;
  int64_t d = 0;
  for (; d + kValueVectors <= whole; d += kValueVectors) {
    AddValues<N, kValueVectors>(args.head_dim, block.v, tokens, weights, decay, query, d);
  }
  for (; d < whole; ++d) AddValues<N, 1>(args.head_dim, block.v, tokens, weights, decay, query, d);
  if (const int64_t tail = args.head_dim % kLanes; tail > 0) {
    for (int i = 0; i < N; ++i) {
      F32x16 sum = Mul(query[i]->sum[d], decay[i]);
      for (int t = 0; t < tokens; ++t) {
        const F32x16 value = LoadPartial(block.v + t * args.head_dim + d * kLanes, tail);
        sum = MulAdd(Set1(weights[i][t]), value, sum);
      }
      query[i]->sum[d] = sum;
    }
  }
}

void Finish(const PagedAttentionArgs& args, const Query& query) {
  const F32x16 total = Set1(ReduceAdd(query.total));
  for (int64_t d = 0; d < args.head_dim; d += kLanes) {
    F32x16 y = Div(query.sum[d / kLanes], total);
    if (args.round_bf16) y = RoundBf16(y);
    if (args.head_dim - d >= kLanes) {
      Store(query.y + d, y);
    } else {
      StorePartial(query.y + d, y, args.head_dim - d);
    }
  }
}

template <typename T>
void AbsorbWhole(const PagedAttentionArgs& args, const Block<T>& block, int count,
                 Query* const* query) {
  if (count == 1) return Absorb<1>(args, block, kLanes, query);
  if (count == 2) return Absorb<2>(args, block, kLanes, query);
  if constexpr (kTileRows >= 3) {
    if (count == 3) return Absorb<3>(args, block, kLanes, query);
    return Absorb<4>(args, block, kLanes, query);
  }
}

// Up to kTileRows queries of one sequence.
template <typename T>
void Attend(const PagedAttentionArgs& args, const int32_t* blocks, int64_t kv_head, Query* queries,
            int count) {
  int32_t first = queries[0].position, last = first;
  for (int i = 0; i < count; ++i) {
    const int32_t position = queries[i].position;
    first = position < first ? position : first;
    last = position > last ? position : last;
    queries[i].largest = -__builtin_inff();
    queries[i].total = Zero();
    for (int64_t d = 0; d * kLanes < args.head_dim; ++d) queries[i].sum[d] = Zero();
  }
  Query* all[kTileRows];
  for (int i = 0; i < count; ++i) all[i] = &queries[i];
  for (int32_t begin = 0; begin <= last; begin += kLanes) {
    const Block<T> block = BlockAt<T>(args, blocks[begin / kLanes], kv_head);
    // Queries share a block only where each attends to all of it: a token that one of them must not
    // see never enters its sums, not even with weight zero.
    if (begin + kLanes <= first + 1) {
      AbsorbWhole(args, block, count, all);
      continue;
    }
    for (int i = 0; i < count; ++i) {
      const int32_t left = queries[i].position + 1 - begin;
      if (left > 0) Absorb<1>(args, block, left < kLanes ? left : kLanes, &all[i]);
    }
  }
  for (int i = 0; i < count; ++i) Finish(args, queries[i]);
}

template <typename T>
void Rows(const PagedAttentionArgs& args, int64_t begin, int64_t end, int64_t kv_head) {
  const int64_t group = args.heads / args.kv_heads;
  Query queries[kTileRows];
  int count = 0;
  const int32_t* blocks = nullptr;
  for (int64_t r = begin; r < end; ++r) {
    const AttentionRow& row = args.rows[r];
    if (count > 0 && row.blocks != blocks) {
      Attend<T>(args, blocks, kv_head, queries, count);
      count = 0;
    }
    blocks = row.blocks;
    for (int64_t h = kv_head * group; h < (kv_head + 1) * group; ++h) {
      queries[count].q = args.q + r * args.q_stride + h * args.head_dim;
      queries[count].y = args.y + r * args.y_stride + h * args.head_dim;
      queries[count].position = row.position;
      if (++count == kTileRows) {
        Attend<T>(args, blocks, kv_head, queries, count);
        count = 0;
      }
    }
  }
  if (count > 0) Attend<T>(args, blocks, kv_head, queries, count);
}

}  // namespace

void PagedAttentionRows(const PagedAttentionArgs& args, int64_t begin, int64_t end,
                        int64_t kv_head) {
  if (args.kv_dtype == DType::kF32) {
    Rows<float>(args, begin, end, kv_head);
  } else {
    Rows<Bf16>(args, begin, end, kv_head);
  }
}

}  // namespace lynx::kernels::LYNX_KERNEL_ISA
