#pragma once

// For the bodies of PagedAttention only: bf16 products by tdpbf16ps.

#include "kernels/attention/pack_values.h"
#include "kernels/attention/transpose.h"

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

  // q: [heads * count] of [head_dim]; more than sixteen a head only where there is one head.
  void SetQueries(const float* const* q, int heads, int count) {
    heads_ = heads;
    first_ = count < kLanes ? count : kLanes;
    second_ = count - first_;
    for (int head = 0; head < heads; ++head) {
      PackQueries(q + head * count, first_, q_ + head * HeadQueries());
    }
    PackQueries(q + first_, second_, q_ + HeadQueries());
    // Scores: 0..3 [tokens][queries] = 4, 5 [tokens][dimensions] * 6, 7 [dimension pairs][queries].
    score_tiles_ = TileShapes();
    for (int tile : {4, 5}) score_tiles_.Set(tile, kLanes, kDepth / 2);
    for (int tile : {0, 2, 6}) score_tiles_.Set(tile, kLanes, first_);
    for (int tile : {1, 3, 7}) score_tiles_.Set(tile, kLanes, second_);
    // Values: 0..3 [queries][dimensions] = 4, 5 [queries][tokens] * 6, 7 [token pairs][dimensions].
    value_tiles_ = TileShapes();
    for (int tile : {6, 7}) value_tiles_.Set(tile, kLanes, kLanes);
    for (int tile : {0, 1, 4}) value_tiles_.Set(tile, first_, kLanes);
    for (int tile : {2, 3, 5}) value_tiles_.Set(tile, second_ == 0 ? first_ : second_, kLanes);
  }

  // scores[h * count + i][t] = q[h * count + i] . K[h][t] for the tokens of all blocks of `kv`.
  void Scores(const SplitKv<Bf16>& kv, float (*scores)[kSplitTokens]) {
    ConfigureTiles(score_tiles_);
    const int blocks_ahead = BlocksAhead(first_ + second_);
    for (int b = 0; b < kv.blocks; b += 2) {
      for (int head = 0; head < heads_; ++head) {
        const uint32_t* q = q_ + head * HeadQueries();
        const Bf16* k[2] = {kv.K(b, head), nullptr};
        const Bf16* ahead[2] = {AheadOfK(kv, blocks_ahead, b, head), nullptr};
        float* to = scores[head * first_] + b * kLanes;
        if (b + 1 < kv.blocks) {
          k[1] = kv.K(b + 1, head);
          ahead[1] = AheadOfK(kv, blocks_ahead, b + 1, head);
          second_ == 0 ? ScoreTiles<2, 1>(q, k, ahead, to) : ScoreTiles<2, 2>(q, k, ahead, to);
        } else {
          second_ == 0 ? ScoreTiles<1, 1>(q, k, ahead, to) : ScoreTiles<1, 2>(q, k, ahead, to);
        }
      }
    }
  }

  // sums[h * count + i].sum = sum over t < tokens of weights[h * count + i][t] * V[h][t].
  void Values(const SplitKv<Bf16>& kv, int tokens, const Bf16 (*weights)[kSplitTokens],
              const SplitKv<Bf16>& next, AttentionSums* sums) {
    if (first_ == 1 && second_ == 0) {
      OneQueryValues(kv, tokens, weights, next, sums);
      return;
    }
    ConfigureTiles(value_tiles_);
    // Those of one head can stay in their tiles.
    const int step = heads_ == 1 ? kSplitBlocks : 2;
    for (int b = 0; b < kv.blocks; b += step) {
      const int end = b + step < kv.blocks ? b + step : kv.blocks;
      for (int head = 0; head < heads_; ++head) {
        const Bf16(*head_weights)[kSplitTokens] = weights + head * first_;
        int64_t d = 0;
        if (second_ == 0) {
          for (; d + kDepth < head_dim_; d += 2 * kDepth) {
            ValueTiles<1, 2>(kv, head, b, end, d, tokens, head_weights, next);
          }
          if (d < head_dim_) ValueTiles<1, 1>(kv, head, b, end, d, tokens, head_weights, next);
        } else {
          for (; d < head_dim_; d += kDepth) {
            ValueTiles<2, 1>(kv, head, b, end, d, tokens, head_weights, next);
          }
        }
      }
    }
    for (int head = 0; head < heads_; ++head) {
      for (int64_t d = 0; d < head_dim_; d += kDepth) {
        const float* low = ValueSums(head, d, 0);
        const float* high = ValueSums(head, d, 1);
        for (int i = 0; i < first_ + second_; ++i, low += kLanes, high += kLanes) {
          Unshuffle(Load(low), Load(high), sums[head * (first_ + second_) + i].sum + d);
        }
      }
    }
  }

 private:
  // Pairs of the queries in the first tile.
  int64_t HeadQueries() const { return first_ * head_dim_ / 2; }

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
  void ScoreTiles(const uint32_t* q, const Bf16* const* k, const Bf16* const* ahead, float* to) {
    const int64_t k_stride = head_dim_ * 2;
    ZeroTile<0>();
    if constexpr (kQueryTiles == 2) ZeroTile<1>();
    if constexpr (kBlocks == 2) ZeroTile<2>();
    if constexpr (kBlocks == 2 && kQueryTiles == 2) ZeroTile<3>();
    for (int64_t d = 0; d < head_dim_; d += kDepth) {
      Prefetch(ahead[0] + d * kLanes, kDepth * kLanes);
      LoadTile<4>(k[0] + d, k_stride);
      LoadTile<6>(q + d / 2 * first_, first_ * 4);
      DotTiles<0, 4, 6>();
      if constexpr (kQueryTiles == 2) {
        LoadTile<7>(q + HeadQueries() + d / 2 * second_, second_ * 4);
        DotTiles<1, 4, 7>();
      }
      if constexpr (kBlocks == 2) {
        Prefetch(ahead[1] + d * kLanes, kDepth * kLanes);
        LoadTile<5>(k[1] + d, k_stride);
        DotTiles<2, 5, 6>();
        if constexpr (kQueryTiles == 2) DotTiles<3, 5, 7>();
      }
    }
    if (first_ == 1) {  // A column of scores is the row that is wanted.
      StoreTile<0>(to, 4);
      if constexpr (kBlocks == 2) StoreTile<2>(to + kLanes, 4);
    } else {
      StoreTile<0>(tile_, kTileRow);
      StoreScores(first_, to);
      if constexpr (kBlocks == 2) {
        StoreTile<2>(tile_, kTileRow);
        StoreScores(first_, to + kLanes);
      }
    }
    if constexpr (kQueryTiles == 2) {
      to += kLanes * kSplitTokens;
      StoreTile<1>(tile_, kTileRow);
      StoreScores(second_, to);
      if constexpr (kBlocks == 2) {
        StoreTile<3>(tile_, kTileRow);
        StoreScores(second_, to + kLanes);
      }
    }
  }

  // From tile_ [tokens][queries] to `count` rows of scores.
  void StoreScores(int count, float* to) const {
    __m512 a[kLanes];
#pragma GCC unroll 16
    for (int i = 0; i < kLanes; ++i) a[i] = _mm512_load_ps(tile_[i]);
    Transpose(a);
#pragma GCC unroll 16
    for (int i = 0; i < kLanes; ++i) {
      if (i < count) _mm512_storeu_ps(to + i * kSplitTokens, a[i]);
    }
  }

  float* ValueSums(int head, int64_t d, int half) {
    return value_sums_ + (head * head_dim_ + d + half * kLanes) * (first_ + second_);
  }

  // D times 32 dimensions from d on, of blocks [begin, end); begin is even.
  template <int kQueryTiles, int D>
  void ValueTiles(const SplitKv<Bf16>& kv, int head, int begin, int end, int64_t d, int tokens,
                  const Bf16 (*weights)[kSplitTokens], const SplitKv<Bf16>& next) {
    static_assert(kQueryTiles * D <= 2);
    constexpr int kWeightRow = kSplitTokens * 2;
    constexpr int kSumRow = kLanes * 4;
    // The second tiles of queries, or of dimensions.
    const int64_t second = kQueryTiles == 2 ? first_ * kLanes : kDepth * first_;
    float* low = ValueSums(head, d, 0);
    float* high = ValueSums(head, d, 1);
    if (begin == 0) {
      ZeroTile<0>();
      ZeroTile<1>();
      if constexpr (kQueryTiles * D == 2) {
        ZeroTile<2>();
        ZeroTile<3>();
      }
    } else {
      LoadTile<0>(low, kSumRow);
      LoadTile<1>(high, kSumRow);
      if constexpr (kQueryTiles * D == 2) {
        LoadTile<2>(low + second, kSumRow);
        LoadTile<3>(high + second, kSumRow);
      }
    }
    for (int b = begin; b < end; b += 2) {
      LoadTile<4>(weights[0] + b * kLanes, kWeightRow);
      if constexpr (kQueryTiles == 2) LoadTile<5>(weights[kLanes] + b * kLanes, kWeightRow);
      const Bf16* v = Pack(kv, head, b, d, tokens, next);
      LoadTile<6>(v, kPairRow * 2);
      DotTiles<0, 4, 6>();
      LoadTile<7>(v + kLanes * kPairRow, kPairRow * 2);
      DotTiles<1, 4, 7>();
      if constexpr (kQueryTiles == 2) {
        DotTiles<2, 5, 6>();
        DotTiles<3, 5, 7>();
      }
      if constexpr (D == 2) {
        v = Pack(kv, head, b, d + kDepth, tokens, next);
        LoadTile<6>(v, kPairRow * 2);
        DotTiles<2, 4, 6>();
        LoadTile<7>(v + kLanes * kPairRow, kPairRow * 2);
        DotTiles<3, 4, 7>();
      }
    }
    StoreTile<0>(low, kSumRow);
    StoreTile<1>(high, kSumRow);
    if constexpr (kQueryTiles * D == 2) {
      StoreTile<2>(low + second, kSumRow);
      StoreTile<3>(high + second, kSumRow);
    }
  }

  // As tiles 6 and 7 take it.
  const Bf16* Pack(const SplitKv<Bf16>& kv, int head, int b, int64_t d, int tokens,
                   const SplitKv<Bf16>& next) {
    step_ = (step_ + 1) % kPackedSteps;
    PackStep(kv, next, BlocksAhead(first_ + second_), b, head, d, tokens, head_dim_,
             packed_[step_]);
    return packed_[step_];
  }

  // One query a head: without tiles, so that V need not be packed. The sums are those of tdpbf16ps:
  // it takes the even tokens of a step and the odd ones apart, from zero.
  void OneQueryValues(const SplitKv<Bf16>& kv, int tokens, const Bf16 (*weights)[kSplitTokens],
                      const SplitKv<Bf16>& next, AttentionSums* sums) const {
    constexpr int kMost = 4;
    const FlushDenormals flush;
    for (int b = 0; b < kv.blocks; b += 2) {
      for (int head = 0; head < heads_; ++head) {
        float* to = sums[head].sum;
        for (int64_t d = 0; d < head_dim_; d += kMost * kDepth) {
          const int64_t left = (head_dim_ - d) / kDepth;
          WithFixedRows<kMost>(left < kMost ? static_cast<int>(left) : kMost, [&]<int D>() {
            OneQueryStep<D>(kv, head, b, d, tokens, weights[head], next, to + d);
          });
        }
      }
    }
  }

  template <int D>
  void OneQueryStep(const SplitKv<Bf16>& kv, int head, int b, int64_t d, int tokens,
                    const Bf16* weights, const SplitKv<Bf16>& next, float* sums) const {
    alignas(64) float wide[kDepth];
    Store(wide, Load(weights + b * kLanes));
    Store(wide + kLanes, Load(weights + (b + 1) * kLanes));
    // By parity of tokens and of dimensions.
    F32x16 even[D][2], odd[D][2];
#pragma GCC unroll 16
    for (int j = 0; j < D; ++j) even[j][0] = even[j][1] = odd[j][0] = odd[j][1] = Zero();
    for (int half = 0; half < 2 && b + half < kv.blocks; ++half) {
      const Bf16* v = kv.V(b + half, head) + d;
      const Bf16* ahead = AheadOfV(kv, next, BlocksAhead(1), b + half, head) + d;
      const float* weight = wide + half * kLanes;
      auto add = [&](int t, F32x16(*sum)[2]) {
        const F32x16 w = Set1(weight[t]);
#pragma GCC unroll 16
        for (int j = 0; j < D; ++j) {
          const int64_t at = t * head_dim_ + j * kDepth;
          F32x16 first, second;
          LoadPairs(v + at, &first, &second);
          Prefetch(ahead + at, kDepth);
          sum[j][0] = MulAdd(w, first, sum[j][0]);
          sum[j][1] = MulAdd(w, second, sum[j][1]);
        }
      };
      const int left = tokens - (b + half) * kLanes;
      const int count = left < kLanes ? left : kLanes;
      for (int t = 0; t + 1 < count; t += 2) {
        add(t, even);
        add(t + 1, odd);
      }
      if (count % 2 == 1) add(count - 1, even);
    }
#pragma GCC unroll 16
    for (int j = 0; j < D; ++j, sums += kDepth) {
      F32x16 low, high;
      Interleave(Add(even[j][0], odd[j][0]), Add(even[j][1], odd[j][1]), &low, &high);
      Store(sums, Add(b == 0 ? Zero() : Load(sums), low));
      Store(sums + kLanes, Add(b == 0 ? Zero() : Load(sums + kLanes), high));
    }
  }

  static constexpr int kTileRow = kLanes * 4;  // Bytes.
  // Enough for a step to be written while tiles of others are loaded.
  static constexpr int kPackedSteps = 4;

  const int64_t head_dim_;
  int heads_ = 0;
  int first_ = 0;   // Queries of a head in the first tile of sixteen,
  int second_ = 0;  // and in the second.
  int step_ = 0;    // Of packed_, the last that was written.
  TileShapes score_tiles_;
  TileShapes value_tiles_;
  alignas(64) uint32_t q_[kTileQueries * kMaxHeadDim / 2];
  alignas(64) float tile_[kLanes][kLanes] = {};
  // As the tiles have them: [head][head_dim / 32][2][query][16].
  alignas(64) float value_sums_[kTileQueries * kMaxHeadDim];
  alignas(64) Bf16 packed_[kPackedSteps][kPackedStep];
};

}  // namespace lynx::kernels::LYNX_KERNEL_ISA
