#pragma once

// For the bodies of LatentAttention only: latents of a split, and both products in float32.

#include "kernels/attention/latent_attention_backends.h"
#include "kernels/attention/split_latents.h"

namespace lynx::kernels::LYNX_KERNEL_ISA {

// Each result is one chain of additions, so the tile shapes below do not show in its bits: a score
// takes the dimensions in sixteen lanes which fold at the end, a sum takes the tokens one by one.
template <typename T>
class LatentFmaProducts {
 public:
  using Kv = T;
  using Weight = float;

  LatentFmaProducts(int64_t latent_dim, int64_t rope_dim)
      : latent_dim_(latent_dim), width_(latent_dim + rope_dim) {}

  // q: [count] of [width]; borrowed.
  void SetQueries(const float* const* q, int count) {
    q_ = q;
    count_ = count;
  }

  // scores[i][t] = q[i] . token t for the tokens of all blocks.
  void Scores(const SplitLatents<T>& latents, float (*scores)[kSplitTokens]) const {
    for (int b = 0; b < latents.blocks; ++b) {
      ForGroups<kRows>(count_, [&]<int N>(int i) {
        for (int t = 0; t < kAttentionBlockTokens; t += kColumns) {
          ScoreTile<N>(q_ + i, latents.block[b] + t * width_, scores + i, b * kLanes + t);
        }
      });
    }
  }

  // sums[i].sum = sum over t < tokens of weights[i][t] * the latent of token t.
  void Values(const SplitLatents<T>& latents, int tokens, const float (*weights)[kSplitTokens],
              const SplitLatents<T>& next, LatentSums* sums) const {
    for (int b = 0; b < next.blocks; ++b) {
      Prefetch(next.block[b], kAttentionBlockTokens * width_);
    }
    ForGroups<kRows>(count_, [&]<int N>(int i) {
      constexpr int kVectors = N <= 2 ? 2 * kRows : kRows;
      const int64_t whole = latent_dim_ / kLanes;
      int64_t d = 0;
      for (; d + kVectors <= whole; d += kVectors) {
        ValueTile<N, kVectors>(latents, tokens, weights + i, d * kLanes, kLanes, sums + i);
      }
      for (; d < whole; ++d) {
        ValueTile<N, 1>(latents, tokens, weights + i, d * kLanes, kLanes, sums + i);
      }
      if (const int64_t tail = latent_dim_ % kLanes; tail > 0) {
        ValueTile<N, 1>(latents, tokens, weights + i, d * kLanes, tail, sums + i);
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

  // Tokens t .. t + kColumns - 1 of a split, which begin at `latents`.
  template <int N>
  void ScoreTile(const float* const* q, const T* latents, float (*scores)[kSplitTokens],
                 int t) const {
    F32x16 sum[N][kColumns];
#pragma GCC unroll 16
    for (int i = 0; i < N; ++i) {
#pragma GCC unroll 16
      for (int c = 0; c < kColumns; ++c) sum[i][c] = Zero();
    }
    for (int64_t d = 0; d < width_; d += kLanes) {
      F32x16 column[kColumns];
#pragma GCC unroll 16
      for (int c = 0; c < kColumns; ++c) {
        column[c] = LoadUpTo(latents + c * width_ + d, width_ - d);
      }
#pragma GCC unroll 16
      for (int i = 0; i < N; ++i) {
        const F32x16 row = LoadUpTo(q[i] + d, width_ - d);
#pragma GCC unroll 16
        for (int c = 0; c < kColumns; ++c) sum[i][c] = MulAdd(row, column[c], sum[i][c]);
      }
    }
#pragma GCC unroll 16
    for (int i = 0; i < N; ++i) {
      ReduceAdd4(sum[i][0], sum[i][1], sum[i][2], sum[i][3], scores[i] + t);
    }
  }

  // Elements [d, d + (D - 1) * 16 + width).
  template <int N, int D>
  void ValueTile(const SplitLatents<T>& latents, int tokens, const float (*weights)[kSplitTokens],
                 int64_t d, int64_t width, LatentSums* sums) const {
    F32x16 sum[N][D];
#pragma GCC unroll 16
    for (int i = 0; i < N; ++i) {
#pragma GCC unroll 16
      for (int j = 0; j < D; ++j) sum[i][j] = Zero();
    }
    for (int begin = 0; begin < tokens; begin += kLanes) {
      const T* latent = latents.block[begin / kLanes] + d;
      const int count = tokens - begin < kLanes ? tokens - begin : kLanes;
      for (int t = 0; t < count; ++t, latent += width_) {
        F32x16 weight[N];
#pragma GCC unroll 16
        for (int i = 0; i < N; ++i) weight[i] = Set1(weights[i][begin + t]);
#pragma GCC unroll 16
        for (int j = 0; j < D; ++j) {
          const F32x16 value = LoadUpTo(latent + j * kLanes, width);
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

  const int64_t latent_dim_;
  const int64_t width_;
  const float* const* q_ = nullptr;
  int count_ = 0;
};

}  // namespace lynx::kernels::LYNX_KERNEL_ISA
