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

  // q: [count] of [head_dim]; borrowed.
  void SetQueries(const float* const* q, int count) {
    q_ = q;
    count_ = count;
  }

  // scores[i][t] = q[i] . K[t] for the tokens of all blocks of `kv`.
  void Scores(const SplitKv<T>& kv, float (*scores)[kSplitTokens]) const {
    ForGroups<kRows>(count_, [&]<int N>(int i) {
      for (int b = 0; b < kv.blocks; ++b) {
        for (int t = 0; t < kAttentionBlockTokens; t += kColumns) {
          if (i == 0) Prefetch(kv.v[b] + t * head_dim_, kColumns * head_dim_);
          ScoreTile<N>(q_ + i, kv.k[b] + t * head_dim_, scores + i, b * kLanes + t);
        }
      }
    });
  }

  // sums[i].sum = sum over t < tokens of weights[i][t] * V[t].
  void Values(const SplitKv<T>& kv, int tokens, const Weight (*weights)[kSplitTokens],
              const SplitKv<T>& next, AttentionSums* sums) const {
    for (int b = 0; b < next.blocks; ++b) {
      Prefetch(next.k[b], kAttentionBlockTokens * head_dim_);
    }
    ForGroups<kRows>(count_, [&]<int N>(int i) {
      constexpr int kVectors = N <= 2 ? 2 * kRows : kRows;
      const int64_t whole = head_dim_ / kLanes;
      int64_t d = 0;
      for (; d + kVectors <= whole; d += kVectors) {
        ValueTile<N, kVectors>(kv, tokens, weights + i, d * kLanes, kLanes, sums + i);
      }
      for (; d < whole; ++d) {
        ValueTile<N, 1>(kv, tokens, weights + i, d * kLanes, kLanes, sums + i);
      }
      if (const int64_t tail = head_dim_ % kLanes; tail > 0) {
        ValueTile<N, 1>(kv, tokens, weights + i, d * kLanes, tail, sums + i);
      }
    });
  }

 private:
  // Queries and tokens of a tile of scores: what the registers hold.
  static constexpr int kColumns = 4;
#if defined(__AVX512F__)
  static constexpr int kRows = 4;
#else
  static constexpr int kRows = 2;
#endif

  static F32x16 LoadUpTo(const float* p, int64_t n) {
    return n >= kLanes ? Load(p) : LoadPartial(p, n);
  }
  static F32x16 LoadUpTo(const Bf16* p, int64_t n) {
    return n >= kLanes ? Load(p) : LoadPartial(p, n);
  }

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

  // Elements [d, d + (D - 1) * 16 + width) of V.
  template <int N, int D>
  void ValueTile(const SplitKv<T>& kv, int tokens, const float (*weights)[kSplitTokens], int64_t d,
                 int64_t width, AttentionSums* sums) const {
    F32x16 sum[N][D];
#pragma GCC unroll 16
    for (int i = 0; i < N; ++i) {
#pragma GCC unroll 16
      for (int j = 0; j < D; ++j) sum[i][j] = Zero();
    }
    for (int begin = 0; begin < tokens; begin += kLanes) {
      const T* v = kv.v[begin / kLanes] + d;
      const int count = tokens - begin < kLanes ? tokens - begin : kLanes;
      for (int t = 0; t < count; ++t, v += head_dim_) {
        F32x16 weight[N];
#pragma GCC unroll 16
        for (int i = 0; i < N; ++i) weight[i] = Set1(weights[i][begin + t]);
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
  int count_ = 0;
};

}  // namespace lynx::kernels::LYNX_KERNEL_ISA
