#pragma once

// For the bodies of PagedAttention only: bf16 products by tdpbf16ps.

#include "kernels/attention/pack_values.h"

namespace lynx::kernels::LYNX_KERNEL_ISA {

// A score is the sum over steps of 32 dimensions, a sum that over steps of 32 tokens, each step as
// the instruction defines it. The shapes of tiles do not show in the bits of a result.
class Bf16Products {
 public:
  using Kv = Bf16;
  using Weight = Bf16;

  explicit Bf16Products(int64_t head_dim) : head_dim_(head_dim) {}
  ~Bf16Products() { ReleaseTiles(); }
  Bf16Products(const Bf16Products&) = delete;
  Bf16Products& operator=(const Bf16Products&) = delete;

  // q: [count] of [head_dim].
  void SetQueries(const float* const* q, int count) {
    first_ = count < kLanes ? count : kLanes;
    second_ = count - first_;
    PackQueries(q, first_, q_[0]);
    PackQueries(q + first_, second_, q_[1]);
    // Scores: 0..3 [tokens][queries] = 4, 5 [tokens][dimensions] * 6, 7 [dimension pairs][queries].
    score_tiles_ = TileShapes();
    for (int tile : {4, 5}) score_tiles_.Set(tile, kLanes, kDepth / 2);
    for (int tile : {0, 2, 6}) score_tiles_.Set(tile, kLanes, first_);
    for (int tile : {1, 3, 7}) score_tiles_.Set(tile, kLanes, second_);
    // Values: 0..3 [queries][dimensions] = 4, 5 [queries][tokens] * 6, 7 [token pairs][dimensions].
    value_tiles_ = TileShapes();
    for (int tile : {6, 7}) value_tiles_.Set(tile, kLanes, kLanes);
    for (int tile : {0, 1, 4}) value_tiles_.Set(tile, first_, kLanes);
    for (int tile : {2, 3, 5}) value_tiles_.Set(tile, second_, kLanes);
  }

  // scores[i][t] = q[i] . K[t] for the tokens of all blocks of `kv`.
  void Scores(const SplitKv<Bf16>& kv, float (*scores)[kSplitTokens]) {
    ConfigureTiles(score_tiles_);
    for (int b = 0; b < kv.blocks; b += 2) {
      const bool two = b + 1 < kv.blocks;
      Prefetch(kv.v[b], kAttentionBlockTokens * head_dim_);
      if (two) Prefetch(kv.v[b + 1], kAttentionBlockTokens * head_dim_);
      if (second_ == 0) {
        two ? ScoreTiles<2, 1>(kv.k + b, scores, b) : ScoreTiles<1, 1>(kv.k + b, scores, b);
      } else {
        two ? ScoreTiles<2, 2>(kv.k + b, scores, b) : ScoreTiles<1, 2>(kv.k + b, scores, b);
      }
    }
  }

  // sums[i].sum = sum over t < tokens of weights[i][t] * V[t].
  void Values(const SplitKv<Bf16>& kv, int tokens, const Bf16 (*weights)[kSplitTokens],
              const SplitKv<Bf16>& next, AttentionSums* sums) {
    PackValues(kv, tokens, head_dim_, next, &values_);
    ConfigureTiles(value_tiles_);
    for (int64_t d = 0; d < head_dim_; d += kDepth) {
      if (second_ == 0) {
        ValueTiles<1>(d, DepthSteps(tokens), weights, sums);
      } else {
        ValueTiles<2>(d, DepthSteps(tokens), weights, sums);
      }
    }
  }

 private:
  // [head_dim / 2][count] pairs of dimensions.
  void PackQueries(const float* const* q, int count, uint32_t* packed) const {
    for (int i = 0; i < count; ++i) {
      for (int64_t d = 0; d < head_dim_; d += kLanes) {
        alignas(32) uint32_t pairs[kLanes / 2];
        _mm256_store_si256(reinterpret_cast<__m256i*>(pairs), RoundedQuery(q[i] + d));
        for (int j = 0; j < kLanes / 2; ++j) packed[(d / 2 + j) * count + i] = pairs[j];
      }
    }
  }

  template <int kBlocks, int kQueryTiles>
  void ScoreTiles(const Bf16* const* k, float (*scores)[kSplitTokens], int block) {
    const int64_t k_stride = head_dim_ * 2;
    ZeroTile<0>();
    if constexpr (kQueryTiles == 2) ZeroTile<1>();
    if constexpr (kBlocks == 2) ZeroTile<2>();
    if constexpr (kBlocks == 2 && kQueryTiles == 2) ZeroTile<3>();
    for (int64_t d = 0; d < head_dim_; d += kDepth) {
      LoadTile<4>(k[0] + d, k_stride);
      LoadTile<6>(q_[0] + d / 2 * first_, first_ * 4);
      DotTiles<0, 4, 6>();
      if constexpr (kQueryTiles == 2) {
        LoadTile<7>(q_[1] + d / 2 * second_, second_ * 4);
        DotTiles<1, 4, 7>();
      }
      if constexpr (kBlocks == 2) {
        LoadTile<5>(k[1] + d, k_stride);
        DotTiles<2, 5, 6>();
        if constexpr (kQueryTiles == 2) DotTiles<3, 5, 7>();
      }
    }
    float* to = scores[0] + block * kLanes;
    if (first_ == 1) {  // A column of scores is the row that is wanted.
      StoreTile<0>(to, 4);
      if constexpr (kBlocks == 2) StoreTile<2>(to + kLanes, 4);
    } else {
      StoreTile<0>(tile_, kTileRow);
      Transpose(first_, to);
      if constexpr (kBlocks == 2) {
        StoreTile<2>(tile_, kTileRow);
        Transpose(first_, to + kLanes);
      }
    }
    if constexpr (kQueryTiles == 2) {
      to += kLanes * kSplitTokens;
      StoreTile<1>(tile_, kTileRow);
      Transpose(second_, to);
      if constexpr (kBlocks == 2) {
        StoreTile<3>(tile_, kTileRow);
        Transpose(second_, to + kLanes);
      }
    }
  }

  // From tile_ [tokens][queries] to `count` rows of scores.
  void Transpose(int count, float* to) const {
    __m512 a[kLanes], b[kLanes];
#pragma GCC unroll 16
    for (int i = 0; i < kLanes; ++i) a[i] = _mm512_load_ps(tile_[i]);
#pragma GCC unroll 8
    for (int i = 0; i < kLanes; i += 2) {
      b[i] = _mm512_unpacklo_ps(a[i], a[i + 1]);
      b[i + 1] = _mm512_unpackhi_ps(a[i], a[i + 1]);
    }
    // a[4 i + c]: in lane l, tokens 4 i .. 4 i + 3 of query 4 l + c.
#pragma GCC unroll 4
    for (int i = 0; i < kLanes; i += 4) {
      a[i] = _mm512_shuffle_ps(b[i], b[i + 2], 0x44);
      a[i + 1] = _mm512_shuffle_ps(b[i], b[i + 2], 0xee);
      a[i + 2] = _mm512_shuffle_ps(b[i + 1], b[i + 3], 0x44);
      a[i + 3] = _mm512_shuffle_ps(b[i + 1], b[i + 3], 0xee);
    }
#pragma GCC unroll 4
    for (int c = 0; c < 4; ++c) {
      const __m512 low01 = _mm512_shuffle_f32x4(a[c], a[4 + c], 0x44);
      const __m512 low23 = _mm512_shuffle_f32x4(a[8 + c], a[12 + c], 0x44);
      const __m512 high01 = _mm512_shuffle_f32x4(a[c], a[4 + c], 0xee);
      const __m512 high23 = _mm512_shuffle_f32x4(a[8 + c], a[12 + c], 0xee);
      b[c] = _mm512_shuffle_f32x4(low01, low23, 0x88);
      b[4 + c] = _mm512_shuffle_f32x4(low01, low23, 0xdd);
      b[8 + c] = _mm512_shuffle_f32x4(high01, high23, 0x88);
      b[12 + c] = _mm512_shuffle_f32x4(high01, high23, 0xdd);
    }
#pragma GCC unroll 16
    for (int i = 0; i < kLanes; ++i) {
      if (i < count) _mm512_storeu_ps(to + i * kSplitTokens, b[i]);
    }
  }

  template <int kQueryTiles>
  void ValueTiles(int64_t d, int steps, const Bf16 (*weights)[kSplitTokens], AttentionSums* sums) {
    constexpr int kWeightRow = kSplitTokens * 2;
    ZeroTile<0>();
    ZeroTile<1>();
    if constexpr (kQueryTiles == 2) {
      ZeroTile<2>();
      ZeroTile<3>();
    }
    for (int s = 0; s < steps; ++s) {
      const Bf16* v = values_.data[d / kDepth][s];
      LoadTile<4>(weights[0] + s * kDepth, kWeightRow);
      LoadTile<6>(v, kPairRow * 2);
      DotTiles<0, 4, 6>();
      LoadTile<7>(v + kLanes * kPairRow, kPairRow * 2);
      DotTiles<1, 4, 7>();
      if constexpr (kQueryTiles == 2) {
        LoadTile<5>(weights[kLanes] + s * kDepth, kWeightRow);
        DotTiles<2, 5, 6>();
        DotTiles<3, 5, 7>();
      }
    }
    StoreTile<0>(tile_, kTileRow);
    StoreTile<1>(high_tile_, kTileRow);
    StoreSums(first_, d, sums);
    if constexpr (kQueryTiles == 2) {
      StoreTile<2>(tile_, kTileRow);
      StoreTile<3>(high_tile_, kTileRow);
      StoreSums(second_, d, sums + kLanes);
    }
  }

  void StoreSums(int count, int64_t d, AttentionSums* sums) const {
    for (int i = 0; i < count; ++i) Unshuffle(Load(tile_[i]), Load(high_tile_[i]), sums[i].sum + d);
  }

  static constexpr int kTileRow = kLanes * 4;  // Bytes.

  const int64_t head_dim_;
  int first_ = 0;   // Queries of the first tile of sixteen,
  int second_ = 0;  // and of the second.
  TileShapes score_tiles_;
  TileShapes value_tiles_;
  alignas(64) uint32_t q_[2][kMaxHeadDim / 2 * kLanes];
  alignas(64) float tile_[kLanes][kLanes] = {};
  alignas(64) float high_tile_[kLanes][kLanes];
  PackedValues values_;
};

}  // namespace lynx::kernels::LYNX_KERNEL_ISA
