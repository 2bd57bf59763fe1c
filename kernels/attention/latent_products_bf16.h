#pragma once

// For the bodies of LatentAttention only: bf16 products by vdpbf16ps.

#include "kernels/attention/pack_latents.h"

namespace lynx::kernels::LYNX_KERNEL_ISA {

// Each result is one chain of additions: a score takes pairs of dimensions in sixteen lanes which
// fold at the end, a sum takes the tokens two by two.
class LatentBf16Products {
 public:
  using Kv = Bf16;
  using Weight = Bf16;

  LatentBf16Products(int64_t latent_dim, int64_t rope_dim)
      : latent_dim_(latent_dim), width_(latent_dim + rope_dim) {}

  // q: [count] of [width].
  void SetQueries(const float* const* q, int count) {
    count_ = count;
    for (int i = 0; i < count; ++i) {
      for (int64_t d = 0; d < width_; d += kLanes) {
        _mm256_store_si256(reinterpret_cast<__m256i*>(q_[i] + d), RoundedQuery(q[i] + d));
      }
    }
  }

  // scores[i][t] = q[i] . token t for the tokens of all blocks.
  void Scores(const SplitLatents<Bf16>& latents, float (*scores)[kSplitTokens]) const {
    for (int b = 0; b < latents.blocks; ++b) {
      ForGroups<kRows>(count_, [&]<int N>(int i) {
        for (int t = 0; t < kAttentionBlockTokens; t += kColumns) {
          ScoreTile<N>(i, latents.block[b] + t * width_, scores + i, b * kLanes + t);
        }
      });
    }
  }

  // sums[i].sum = sum over t < tokens of weights[i][t] * the latent of token t.
  void Values(const SplitLatents<Bf16>& latents, int tokens, const Bf16 (*weights)[kSplitTokens],
              const SplitLatents<Bf16>& next, LatentSums* sums) {
    int64_t d = 0;
    for (; d + 2 * kDepth <= latent_dim_; d += 2 * kDepth) {
      ValueStep<2>(latents, tokens, d, weights, next, sums);
    }
    if (d < latent_dim_) ValueStep<1>(latents, tokens, d, weights, next, sums);
  }

 private:
  // Queries and tokens of a tile of scores: what the registers hold.
  static constexpr int kRows = 4;
  static constexpr int kColumns = 4;

  // Tokens t .. t + kColumns - 1 of a split, which begin at `latents`.
  template <int N>
  void ScoreTile(int i, const Bf16* latents, float (*scores)[kSplitTokens], int t) const {
    F32x16 sum[N][kColumns];
#pragma GCC unroll 16
    for (int r = 0; r < N; ++r) {
#pragma GCC unroll 16
      for (int c = 0; c < kColumns; ++c) sum[r][c] = Zero();
    }
    for (int64_t d = 0; d < width_; d += kDepth) {
      Bf16Pairs column[kColumns];
#pragma GCC unroll 16
      for (int c = 0; c < kColumns; ++c) column[c] = LoadBf16Pairs(latents + c * width_ + d);
#pragma GCC unroll 16
      for (int r = 0; r < N; ++r) {
        const Bf16Pairs row = LoadBf16Pairs(q_[i + r] + d);
#pragma GCC unroll 16
        for (int c = 0; c < kColumns; ++c) sum[r][c] = DotPairs(row, column[c], sum[r][c]);
      }
    }
#pragma GCC unroll 16
    for (int r = 0; r < N; ++r) {
      ReduceAdd4(sum[r][0], sum[r][1], sum[r][2], sum[r][3], scores[r] + t);
    }
  }

  // D times 32 dimensions from d on.
  template <int D>
  void ValueStep(const SplitLatents<Bf16>& latents, int tokens, int64_t d,
                 const Bf16 (*weights)[kSplitTokens], const SplitLatents<Bf16>& next,
                 LatentSums* sums) {
    for (int j = 0; j < D; ++j) {
      PackLatents(latents, tokens, width_, d + j * kDepth, packed_[j]);
      PrefetchStep(next, width_, d + j * kDepth, latent_dim_);
    }
    ForGroups<kRows>(count_, [&]<int N>(int i) {
      ValueTile<N, D>(d, DepthSteps(tokens), weights + i, sums + i);
    });
  }

  template <int N, int D>
  void ValueTile(int64_t d, int steps, const Bf16 (*weights)[kSplitTokens],
                 LatentSums* sums) const {
    F32x16 sum[N][2 * D];
#pragma GCC unroll 16
    for (int i = 0; i < N; ++i) {
#pragma GCC unroll 16
      for (int j = 0; j < 2 * D; ++j) sum[i][j] = Zero();
    }
    for (int s = 0; s < steps; ++s) {
      for (int pair = 0; pair < kLanes; ++pair) {
        Bf16Pairs weight[N];
#pragma GCC unroll 16
        for (int i = 0; i < N; ++i) {
          weight[i] = BroadcastBf16Pair(weights[i] + s * kDepth + 2 * pair);
        }
#pragma GCC unroll 16
        for (int j = 0; j < 2 * D; ++j) {
          const Bf16Pairs value =
              LoadBf16Pairs(packed_[j / 2][s] + (j % 2 * kLanes + pair) * kPairRow);
#pragma GCC unroll 16
          for (int i = 0; i < N; ++i) sum[i][j] = DotPairs(weight[i], value, sum[i][j]);
        }
      }
    }
#pragma GCC unroll 16
    for (int i = 0; i < N; ++i) {
#pragma GCC unroll 16
      for (int j = 0; j < D; ++j) {
        Unshuffle(sum[i][2 * j], sum[i][2 * j + 1], sums[i].sum + d + j * kDepth);
      }
    }
  }

  const int64_t latent_dim_;
  const int64_t width_;
  int count_ = 0;
  alignas(64) Bf16 q_[kTileQueries][kMaxLatentWidth];
  alignas(64) Bf16 packed_[2][kSplitTokens / kDepth][kPackedStep];
};

}  // namespace lynx::kernels::LYNX_KERNEL_ISA
