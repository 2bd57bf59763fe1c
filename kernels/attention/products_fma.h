#pragma once

// For the bodies of PagedAttention only: both products in float32.

#include "kernels/attention/split_kv.h"

namespace lynx::kernels::LYNX_KERNEL_ISA {

// Each result is one chain of additions, so the tile shapes below do not show in its bits: a score
// takes head_dim in sixteen lanes which fold at the end, a sum takes the tokens one by one.
template <typename T>
class FmaProducts {
 public:
  using Kv = T;
  using Weight = float;

  explicit FmaProducts(int64_t head_dim) : head_dim_(head_dim) {}

  // q: [heads * count] of [head_dim]; borrowed.
  void SetQueries(const float* const* q, int heads, int count) {
    q_ = q;
    heads_ = heads;
    count_ = count;
  }

  // scores[h * count + i][t] = q[h * count + i] . K[h][t] for the tokens of all blocks of `kv`.
  void Scores(const SplitKv<T>& kv, float (*scores)[kSplitTokens]) const {
    const int blocks_ahead = BlocksAhead(count_);
    for (int b = 0; b < kv.blocks; ++b) {
      for (int head = 0; head < heads_; ++head) {
        const T* k = kv.K(b, head);
        const T* ahead = AheadOfK(kv, blocks_ahead, b, head);
        ForGroups<kRows>(count_, [&]<int N>(int i) {
          const int query = head * count_ + i;
          for (int t = 0; t < kAttentionBlockTokens; t += kColumns) {
            if (i == 0) Prefetch(ahead + t * head_dim_, kColumns * head_dim_);
            ScoreTile<N>(q_ + query, k + t * head_dim_, scores + query, b * kLanes + t);
          }
        });
      }
    }
  }

  // sums[h * count + i].sum = sum over t < tokens of weights[h * count + i][t] * V[h][t].
  void Values(const SplitKv<T>& kv, int tokens, const Weight (*weights)[kSplitTokens],
              const SplitKv<T>& next, AttentionSums* sums) const {
    // Those of one head can stay in registers.
    const int step = heads_ == 1 ? kSplitBlocks : 1;
    for (int b = 0; b < kv.blocks; b += step) {
      const int end = b + step < kv.blocks ? b + step : kv.blocks;
      for (int head = 0; head < heads_; ++head) {
        AddValues(kv, head, b, end, tokens, weights + head * count_, next, sums + head * count_);
      }
    }
  }

 private:
  // Queries and tokens of a tile of scores: what the registers hold.
  static constexpr int kColumns = 4;
#if defined(__AVX512F__)
  static constexpr int kRows = 4;
#else
  static constexpr int kRows = 2;
#endif

  // K of kColumns tokens.
  template <int N>
  void ScoreTile(const float* const* q, const T* k, float (*scores)[kSplitTokens], int t) const {
    F32x16 sum[N][kColumns];
#pragma GCC unroll 16
    for (int i = 0; i < N; ++i) {
#pragma GCC unroll 16
      for (int c = 0; c < kColumns; ++c) sum[i][c] = Zero();
    }
    for (int64_t d = 0; d < head_dim_; d += kLanes) {
      F32x16 column[kColumns];
#pragma GCC unroll 16
      for (int c = 0; c < kColumns; ++c) {
        column[c] = LoadUpTo(k + c * head_dim_ + d, head_dim_ - d);
      }
#pragma GCC unroll 16
      for (int i = 0; i < N; ++i) {
        const F32x16 row = LoadUpTo(q[i] + d, head_dim_ - d);
#pragma GCC unroll 16
        for (int c = 0; c < kColumns; ++c) sum[i][c] = MulAdd(row, column[c], sum[i][c]);
      }
    }
#pragma GCC unroll 16
    for (int i = 0; i < N; ++i) {
      ReduceAdd4(sum[i][0], sum[i][1], sum[i][2], sum[i][3], scores[i] + t);
    }
  }

  // Blocks [begin, end).
  void AddValues(const SplitKv<T>& kv, int head, int begin, int end, int tokens,
                 const float (*weights)[kSplitTokens], const SplitKv<T>& next,
                 AttentionSums* sums) const {
    for (int b = begin; b < end; ++b) {
      Prefetch(AheadOfV(kv, next, BlocksAhead(count_), b, head), kv.head_elements);
    }
    ForGroups<kRows>(count_, [&]<int N>(int i) {
      constexpr int kVectors = N <= 2 ? 2 * kRows : kRows;
      const int64_t whole = head_dim_ / kLanes;
      auto tile = [&]<int D>(int64_t d, int64_t width) {
        ValueTile<N, D>(kv, head, begin, end, tokens, weights + i, d * kLanes, width, sums + i);
      };
      int64_t d = 0;
      for (; d + kVectors <= whole; d += kVectors) tile.template operator()<kVectors>(d, kLanes);
      for (; d < whole; ++d) tile.template operator()<1>(d, kLanes);
      if (const int64_t tail = head_dim_ % kLanes; tail > 0) tile.template operator()<1>(d, tail);
    });
  }

  // Elements [d, d + (D - 1) * 16 + width) of V.
  template <int N, int D>
  void ValueTile(const SplitKv<T>& kv, int head, int begin, int end, int tokens,
                 const float (*weights)[kSplitTokens], int64_t d, int64_t width,
                 AttentionSums* sums) const {
    F32x16 sum[N][D];
#pragma GCC unroll 16
    for (int i = 0; i < N; ++i) {
#pragma GCC unroll 16
      for (int j = 0; j < D; ++j) {
        sum[i][j] = begin == 0 ? Zero() : Load(sums[i].sum + d + j * kLanes);
      }
    }
    for (int b = begin; b < end; ++b) {
      const T* v = kv.V(b, head) + d;
      const int first = b * kLanes;
      const int count = tokens - first < kLanes ? tokens - first : kLanes;
      for (int t = 0; t < count; ++t, v += head_dim_) {
        F32x16 weight[N];
#pragma GCC unroll 16
        for (int i = 0; i < N; ++i) weight[i] = Set1(weights[i][first + t]);
#pragma GCC unroll 16
        for (int j = 0; j < D; ++j) {
          const F32x16 value = LoadUpTo(v + j * kLanes, width);
#pragma GCC unroll 16
          for (int i = 0; i < N; ++i) sum[i][j] = MulAdd(weight[i], value, sum[i][j]);
        }
      }
    }
#pragma GCC unroll 16
    for (int i = 0; i < N; ++i) {
#pragma GCC unroll 16
      for (int j = 0; j < D; ++j) Store(sums[i].sum + d + j * kLanes, sum[i][j]);
    }
  }

  const int64_t head_dim_;
  const float* const* q_ = nullptr;
  int heads_ = 0;
  int count_ = 0;  // Queries of a head.
};

}  // namespace lynx::kernels::LYNX_KERNEL_ISA
