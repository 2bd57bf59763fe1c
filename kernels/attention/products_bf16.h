#pragma once

// For the bodies of PagedAttention only: bf16 products by vdpbf16ps.

#include "kernels/attention/pack_values.h"

namespace lynx::kernels::LYNX_KERNEL_ISA {

// Each result is one chain of additions: a score takes pairs of dimensions in sixteen lanes which
// fold at the end, a sum takes the tokens two by two.
class Bf16Products {
 public:
  using Kv = Bf16;
  using Weight = Bf16;

  explicit Bf16Products(int64_t head_dim) : head_dim_(head_dim) {}

  // q: [heads * count] of [head_dim].
  void SetQueries(const float* const* q, int heads, int count) {
    heads_ = heads;
    count_ = count;
    for (int i = 0; i < heads * count; ++i) {
      for (int64_t d = 0; d < head_dim_; d += kLanes) {
        _mm256_store_si256(reinterpret_cast<__m256i*>(q_[i] + d), RoundedQuery(q[i] + d));
      }
    }
  }

  // scores[h * count + i][t] = q[h * count + i] . K[h][t] for the tokens of all blocks of `kv`.
  void Scores(const SplitKv<Bf16>& kv, float (*scores)[kSplitTokens]) const {
    const int blocks_ahead = BlocksAhead(count_);
    for (int b = 0; b < kv.blocks; ++b) {
      for (int head = 0; head < heads_; ++head) {
        const Bf16* k = kv.K(b, head);
        const Bf16* ahead = AheadOfK(kv, blocks_ahead, b, head);
        ForGroups<kRows>(count_, [&]<int N>(int i) {
          for (int t = 0; t < kAttentionBlockTokens; t += kColumns) {
            if (i == 0) Prefetch(ahead + t * head_dim_, kColumns * head_dim_);
            ScoreTile<N>(head * count_ + i, k + t * head_dim_, scores, b * kLanes + t);
          }
        });
      }
    }
  }

  // sums[h * count + i].sum = sum over t < tokens of weights[h * count + i][t] * V[h][t].
  void Values(const SplitKv<Bf16>& kv, int tokens, const Bf16 (*weights)[kSplitTokens],
              const SplitKv<Bf16>& next, AttentionSums* sums) {
    const int blocks_ahead = BlocksAhead(count_);
    for (int b = 0; b < kv.blocks; b += 2) {
      for (int head = 0; head < heads_; ++head) {
        for (int64_t d = 0; d < head_dim_; d += kDepth) {
          PackStep(kv, next, blocks_ahead, b, head, d, tokens, head_dim_, packed_[d / kDepth]);
        }
        ForGroups<kRows>(count_, [&]<int N>(int i) {
          int64_t d = 0;
          for (; d + 2 * kDepth <= head_dim_; d += 2 * kDepth) {
            ValueTile<N, 2>(head * count_ + i, d, b, weights);
          }
          if (d < head_dim_) ValueTile<N, 1>(head * count_ + i, d, b, weights);
        });
      }
    }
    for (int i = 0; i < heads_ * count_; ++i) {
      float* to = sums[i].sum;
      for (int64_t d = 0; d < head_dim_; d += kDepth) {
        Unshuffle(Load(value_sums_[i] + d), Load(value_sums_[i] + d + kLanes), to + d);
      }
    }
  }

 private:
  // Queries and tokens of a tile of scores: what the registers hold.
  static constexpr int kRows = 4;
  static constexpr int kColumns = 4;

  template <int N>
  void ScoreTile(int i, const Bf16* k, float (*scores)[kSplitTokens], int t) const {
    F32x16 sum[N][kColumns];
#pragma GCC unroll 16
    for (int r = 0; r < N; ++r) {
#pragma GCC unroll 16
      for (int c = 0; c < kColumns; ++c) sum[r][c] = Zero();
    }
    for (int64_t d = 0; d < head_dim_; d += kDepth) {
      Bf16Pairs column[kColumns];
#pragma GCC unroll 16
      for (int c = 0; c < kColumns; ++c) column[c] = LoadBf16Pairs(k + c * head_dim_ + d);
#pragma GCC unroll 16
      for (int r = 0; r < N; ++r) {
        const Bf16Pairs row = LoadBf16Pairs(q_[i + r] + d);
#pragma GCC unroll 16
        for (int c = 0; c < kColumns; ++c) sum[r][c] = DotPairs(row, column[c], sum[r][c]);
      }
    }
#pragma GCC unroll 16
    for (int r = 0; r < N; ++r) {
      ReduceAdd4(sum[r][0], sum[r][1], sum[r][2], sum[r][3], scores[i + r] + t);
    }
  }

  // D times 32 dimensions from d on, of the packed blocks b and b + 1.
  template <int N, int D>
  void ValueTile(int query, int64_t d, int b, const Bf16 (*weights)[kSplitTokens]) {
    F32x16 sum[N][2 * D];
#pragma GCC unroll 16
    for (int i = 0; i < N; ++i) {
#pragma GCC unroll 16
      for (int j = 0; j < 2 * D; ++j) {
        sum[i][j] = b == 0 ? Zero() : Load(value_sums_[query + i] + d + j * kLanes);
      }
    }
    for (int pair = 0; pair < kLanes; ++pair) {
      Bf16Pairs weight[N];
#pragma GCC unroll 16
      for (int i = 0; i < N; ++i) {
        weight[i] = BroadcastBf16Pair(weights[query + i] + b * kLanes + 2 * pair);
      }
#pragma GCC unroll 16
      for (int j = 0; j < 2 * D; ++j) {
        const Bf16Pairs value =
            LoadBf16Pairs(packed_[d / kDepth + j / 2] + (j % 2 * kLanes + pair) * kPairRow);
#pragma GCC unroll 16
        for (int i = 0; i < N; ++i) sum[i][j] = DotPairs(weight[i], value, sum[i][j]);
      }
    }
#pragma GCC unroll 16
    for (int i = 0; i < N; ++i) {
#pragma GCC unroll 16
      for (int j = 0; j < 2 * D; ++j) {
        Store(value_sums_[query + i] + d + j * kLanes, sum[i][j]);
      }
    }
  }

  const int64_t head_dim_;
  int heads_ = 0;
  int count_ = 0;  // Queries of a head.
  alignas(64) Bf16 q_[kTileQueries][kMaxHeadDim];
  alignas(64) float value_sums_[kTileQueries][kMaxHeadDim];     // Shuffled.
  alignas(64) Bf16 packed_[kMaxHeadDim / kDepth][kPackedStep];  // Two blocks of a head.
};

}  // namespace lynx::kernels::LYNX_KERNEL_ISA
