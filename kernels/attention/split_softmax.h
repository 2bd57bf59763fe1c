#pragma once

// For kernel bodies only: what becomes of the scores of a split, and how splits come together.

#include "kernels/attention/split_kv.h"

namespace lynx::kernels::LYNX_KERNEL_ISA {

// Tokens [begin, end) of a split that a query attends to; {0, 0} if none.
struct Visible {
  int begin, end;
};

inline Visible VisibleIn(int32_t first, int32_t position, int32_t split) {
  const int32_t start = split * kSplitTokens;
  const int32_t begin = first > start ? first - start : 0;
  const int32_t left = position + 1 - start;
  const int32_t end = left < kSplitTokens ? left : kSplitTokens;
  return begin < end ? Visible{begin, end} : Visible{0, 0};
}

inline int BlocksOfTokens(int tokens) { return (tokens + kLanes - 1) / kLanes; }

// From the scores of visible tokens to their weights, and zeros for the other tokens of `blocks`
// rounded up to even: bf16 products walk two blocks at a time. Sets total and largest of `sums`.
template <typename Weight, typename Sums>
inline void WeighScores(float* scores, float scale, Visible visible, int blocks, Weight* weights,
                        Sums* sums) {
  const int seen = BlocksOfTokens(visible.end);
  F32x16 largest = Set1(-__builtin_inff());
  for (int b = 0; b < seen; ++b) {
    F32x16 score = Mul(Load(scores + b * kLanes), Set1(scale));
    Store(scores + b * kLanes, score);
    const int begin = b * kLanes, end = begin + kLanes;
    if (begin < visible.begin || end > visible.end) {
      for (int t = begin; t < end; ++t) {
        if (t < visible.begin || t >= visible.end) scores[t] = -__builtin_inff();
      }
      score = Load(scores + begin);
    }
    largest = Max(largest, score);
  }
  sums->largest = ReduceMax(largest);
  F32x16 total = Zero();
  for (int b = 0; b < seen; ++b) {
    const F32x16 score = Load(scores + b * kLanes);
    total = Add(total,
                StoreWeight(weights + b * kLanes, ExpOfNegative(Sub(score, Set1(sums->largest)))));
  }
  Store(sums->total, total);
  for (int b = seen; b < (blocks + 1) / 2 * 2; ++b) StoreWeight(weights + b * kLanes, Zero());
}

// Adds the sums of the tokens that follow, of `dims` dimensions.
template <typename Sums>
inline void MergeSums(Sums* sums, const Sums& next, int64_t dims) {
  const float largest = next.largest > sums->largest ? next.largest : sums->largest;
  const F32x16 decay = Exp(Set1(sums->largest - largest));
  const F32x16 weight = Exp(Set1(next.largest - largest));
  auto merge = [&](float* to, const float* from) {
    Store(to, MulAdd(Load(to), decay, Mul(Load(from), weight)));
  };
  for (int64_t d = 0; d < dims; d += kLanes) merge(sums->sum + d, next.sum + d);
  merge(sums->total, next.total);
  sums->largest = largest;
}

inline F32x16 RoundedTo(const float*, F32x16 a) { return a; }
inline F32x16 RoundedTo(const Bf16*, F32x16 a) { return RoundBf16(a); }

// Writes the weighted mean. A sum that underflows to -0 stays that only if no token of weight zero
// follows, as others' may: so zero has one sign.
template <typename Out, typename Sums>
inline void WriteMean(Out* y, const Sums& sums, int64_t dims) {
  const F32x16 total = Set1(ReduceAdd(Load(sums.total)));
  for (int64_t d = 0; d < dims; d += kLanes) {
    const F32x16 mean = RoundedTo(y, Add(Div(Load(sums.sum + d), total), Zero()));
    if (dims - d >= kLanes) {
      Store(y + d, mean);
    } else {
      StorePartial(y + d, mean, dims - d);
    }
  }
}

}  // namespace lynx::kernels::LYNX_KERNEL_ISA
