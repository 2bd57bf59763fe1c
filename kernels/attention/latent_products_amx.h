#pragma once

// For the bodies of LatentAttention only: bf16 products by tdpbf16ps.

#include "kernels/attention/pack_latents.h"
#include "kernels/attention/transpose.h"

namespace lynx::kernels::LYNX_KERNEL_ISA {

// A score is the sum over steps of 32 dimensions, a sum that over steps of 32 tokens, each step as
// the instruction defines it. The shapes of tiles do not show in the bits of a result.
class LatentBf16Products {
 public:
  using Kv = Bf16;
  using Weight = Bf16;

  LatentBf16Products(int64_t latent_dim, int64_t rope_dim)
      : latent_dim_(latent_dim), width_(latent_dim + rope_dim) {}
  ~LatentBf16Products() { ReleaseTiles(); }
  LatentBf16Products(const LatentBf16Products&) = delete;
  LatentBf16Products& operator=(const LatentBf16Products&) = delete;

  // q: [count] of [width].
  void SetQueries(const float* const* q, int count) {
    count_[0] = count < kLanes ? count : kLanes;
    count_[1] = count - count_[0];
    PackQueries(q, count_[0], q_[0]);
    PackQueries(q + count_[0], count_[1], q_[1]);
    // Scores: 0..3 [tokens][queries] = 4, 5 [tokens][dimensions] * 6, 7 [dimension pairs][queries].
    score_tiles_ = TileShapes();
    for (int tile = 0; tile < 8; ++tile) score_tiles_.Set(tile, kLanes, kLanes);
    // Values: 0..3 [queries][dimensions] = 4, 5 [queries][tokens] * 6, 7 [token pairs][dimensions].
    value_tiles_ = TileShapes();
    for (int tile : {6, 7}) value_tiles_.Set(tile, kLanes, kLanes);
    for (int tile : {0, 1, 4}) value_tiles_.Set(tile, count_[0], kLanes);
    for (int tile : {2, 3, 5}) value_tiles_.Set(tile, count_[1], kLanes);
  }

  // scores[i][t] = q[i] . token t for the tokens of all blocks.
  void Scores(const SplitLatents<Bf16>& latents, float (*scores)[kSplitTokens]) {
    ConfigureTiles(score_tiles_);
    for (int b = 0; b < latents.blocks; b += 2) {
      const bool two = b + 1 < latents.blocks;
      const Bf16* const* block = latents.block + b;
      if (count_[1] == 0) {
        two ? ScoreTiles<2, 1>(block, scores, b) : ScoreTiles<1, 1>(block, scores, b);
      } else {
        two ? ScoreTiles<2, 2>(block, scores, b) : ScoreTiles<1, 2>(block, scores, b);
      }
    }
  }

  // sums[i].sum = sum over t < tokens of weights[i][t] * the latent of token t.
  void Values(const SplitLatents<Bf16>& latents, int tokens, const Bf16 (*weights)[kSplitTokens],
              const SplitLatents<Bf16>& next, LatentSums* sums) {
    ConfigureTiles(value_tiles_);
    for (int64_t d = 0; d < latent_dim_; d += kDepth) {
      PackLatents(latents, tokens, width_, d, packed_);
      PrefetchStep(next, width_, d, latent_dim_);
      if (count_[1] == 0) {
        ValueTiles<1>(d, DepthSteps(tokens), weights, sums);
      } else {
        ValueTiles<2>(d, DepthSteps(tokens), weights, sums);
      }
    }
  }

 private:
  // [width / 2][16] pairs of dimensions; queries that do not exist are zeros.
  void PackQueries(const float* const* q, int count, uint32_t* packed) const {
    if (count == 0) return;
    for (int64_t d = 0; d < width_; d += kDepth, packed += kLanes * kLanes) {
      __m512 rows[kLanes];
      for (int i = 0; i < kLanes; ++i) {
        rows[i] = i < count ? RoundedPairs(q[i] + d) : _mm512_setzero_ps();
      }
      Transpose(rows);
      for (int i = 0; i < kLanes; ++i) {
        _mm512_store_ps(reinterpret_cast<float*>(packed + i * kLanes), rows[i]);
      }
    }
  }

  static __m512 RoundedPairs(const float* q) {
    return reinterpret_cast<__m512>(
        _mm512_cvtne2ps_pbh(_mm512_loadu_ps(q + kLanes), _mm512_loadu_ps(q)));
  }

  template <int kBlocks, int kQueryTiles>
  void ScoreTiles(const Bf16* const* block, float (*scores)[kSplitTokens], int b) {
    const int64_t stride = width_ * 2;
    ZeroTile<0>();
    if constexpr (kQueryTiles == 2) ZeroTile<1>();
    if constexpr (kBlocks == 2) ZeroTile<2>();
    if constexpr (kBlocks == 2 && kQueryTiles == 2) ZeroTile<3>();
    for (int64_t d = 0; d < width_; d += kDepth) {
      LoadTile<4>(block[0] + d, stride);
      LoadTile<6>(q_[0] + d / 2 * kLanes, kTileRow);
      DotTiles<0, 4, 6>();
      if constexpr (kQueryTiles == 2) {
        LoadTile<7>(q_[1] + d / 2 * kLanes, kTileRow);
        DotTiles<1, 4, 7>();
      }
      if constexpr (kBlocks == 2) {
        LoadTile<5>(block[1] + d, stride);
        DotTiles<2, 5, 6>();
        if constexpr (kQueryTiles == 2) DotTiles<3, 5, 7>();
      }
    }
    float* to = scores[0] + b * kLanes;
    StoreTile<0>(tile_, kTileRow);
    StoreScores(count_[0], to);
    if constexpr (kBlocks == 2) {
      StoreTile<2>(tile_, kTileRow);
      StoreScores(count_[0], to + kLanes);
    }
    if constexpr (kQueryTiles == 2) {
      to += kLanes * kSplitTokens;
      StoreTile<1>(tile_, kTileRow);
      StoreScores(count_[1], to);
      if constexpr (kBlocks == 2) {
        StoreTile<3>(tile_, kTileRow);
        StoreScores(count_[1], to + kLanes);
      }
    }
  }

  // From tile_ [tokens][queries] to `count` rows of scores.
  void StoreScores(int count, float* to) const {
    __m512 rows[kLanes];
#pragma GCC unroll 16
    for (int i = 0; i < kLanes; ++i) rows[i] = _mm512_load_ps(tile_[i]);
    Transpose(rows);
#pragma GCC unroll 16
    for (int i = 0; i < kLanes; ++i) {
      if (i < count) _mm512_storeu_ps(to + i * kSplitTokens, rows[i]);
    }
  }

  template <int kQueryTiles>
  void ValueTiles(int64_t d, int steps, const Bf16 (*weights)[kSplitTokens], LatentSums* sums) {
    constexpr int kWeightRow = kSplitTokens * 2;
    ZeroTile<0>();
    ZeroTile<1>();
    if constexpr (kQueryTiles == 2) {
      ZeroTile<2>();
      ZeroTile<3>();
    }
    for (int s = 0; s < steps; ++s) {
      LoadTile<4>(weights[0] + s * kDepth, kWeightRow);
      LoadTile<6>(packed_[s], kPairRow * 2);
      DotTiles<0, 4, 6>();
      LoadTile<7>(packed_[s] + kLanes * kPairRow, kPairRow * 2);
      DotTiles<1, 4, 7>();
      if constexpr (kQueryTiles == 2) {
        LoadTile<5>(weights[kLanes] + s * kDepth, kWeightRow);
        DotTiles<2, 5, 6>();
        DotTiles<3, 5, 7>();
      }
    }
    StoreTile<0>(tile_, kTileRow);
    StoreTile<1>(high_tile_, kTileRow);
    StoreSums(count_[0], d, sums);
    if constexpr (kQueryTiles == 2) {
      StoreTile<2>(tile_, kTileRow);
      StoreTile<3>(high_tile_, kTileRow);
      StoreSums(count_[1], d, sums + kLanes);
    }
  }

  void StoreSums(int count, int64_t d, LatentSums* sums) const {
    for (int i = 0; i < count; ++i) Unshuffle(Load(tile_[i]), Load(high_tile_[i]), sums[i].sum + d);
  }

  static constexpr int kTileRow = kLanes * 4;  // Bytes.

  const int64_t latent_dim_;
  const int64_t width_;
  int count_[2] = {};  // Queries of the first tile of sixteen, and of the second.
  TileShapes score_tiles_;
  TileShapes value_tiles_;
  alignas(64) uint32_t q_[2][kMaxLatentWidth / 2 * kLanes];
  alignas(64) float tile_[kLanes][kLanes];
  alignas(64) float high_tile_[kLanes][kLanes];
  alignas(64) Bf16 packed_[kSplitTokens / kDepth][kPackedStep];
};

}  // namespace lynx::kernels::LYNX_KERNEL_ISA
