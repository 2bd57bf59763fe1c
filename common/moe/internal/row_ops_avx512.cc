#include <algorithm>
#include <iterator>
#include <limits>

#include "common/moe/internal/row_ops.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace lynx::moe::internal {

#if defined(__x86_64__)

// Each function names its instruction set, so that nothing shared with other files is compiled for
// it.
#define LYNX_AVX512 [[gnu::target("avx512f,avx512bw,avx512dq,avx512vl,fma,bmi,bmi2,popcnt")]]
#define LYNX_AVX512_INLINE                                                 \
  [[gnu::target("avx512f,avx512bw,avx512dq,avx512vl,fma,bmi,bmi2,popcnt"), \
    gnu::always_inline]] inline

namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

// The lanes of block `b` of 16 that are in a row.
LYNX_AVX512_INLINE __mmask16 Lanes(size_t count, size_t b) {
  const size_t left = count - 16 * b;
  return static_cast<__mmask16>(left >= 16 ? 0xFFFF : (1u << left) - 1);
}

LYNX_AVX512 int32_t CountUsable(const float* scores, size_t count) {
  const __m512 infinite = _mm512_set1_ps(kInf);
  const __m512 none = _mm512_set1_ps(-kInf);
  uint32_t wrong = 0;
  int usable = 0;
  for (size_t b = 0; 16 * b < count; ++b) {
    const __mmask16 lanes = Lanes(count, b);
    const __m512 v = _mm512_maskz_loadu_ps(lanes, scores + 16 * b);
    wrong |= _mm512_mask_cmp_ps_mask(lanes, v, infinite, _CMP_NLT_UQ);
    usable += __builtin_popcount(_mm512_mask_cmp_ps_mask(lanes, v, none, _CMP_GT_OQ));
  }
  return wrong != 0 ? -1 : usable;
}

// The experts of block `b` that may be chosen; -Inf in the other lanes.
LYNX_AVX512_INLINE __m512 Candidates(const float* scores, const uint8_t* allowed, size_t count,
                                     size_t b) {
  __mmask16 lanes = 16 * b < count ? Lanes(count, b) : __mmask16{0};
  if (allowed != nullptr) {
    const __m128i bytes = _mm_maskz_loadu_epi8(lanes, allowed + 16 * b);
    lanes = _mm_mask_test_epi8_mask(lanes, bytes, bytes);
  }
  return _mm512_mask_loadu_ps(_mm512_set1_ps(-kInf), lanes, scores + 16 * b);
}

// The largest lane of each of four vectors; in lanes 0 to 3, and again in every four.
LYNX_AVX512_INLINE __m512 LargestOfEach(__m512 a, __m512 b, __m512 c, __m512 d) {
  const __m512 ab = _mm512_max_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
  const __m512 cd = _mm512_max_ps(_mm512_unpacklo_ps(c, d), _mm512_unpackhi_ps(c, d));
  __m512 v = _mm512_max_ps(_mm512_shuffle_ps(ab, cd, 0x44), _mm512_shuffle_ps(ab, cd, 0xEE));
  v = _mm512_max_ps(v, _mm512_shuffle_f32x4(v, v, 0x4E));
  return _mm512_max_ps(v, _mm512_shuffle_f32x4(v, v, 0xB1));
}

// The largest of a row's lanes, again and again; those that were taken drop out. Finding it is one
// long chain, so `Rows` rows go side by side, all in registers.
template <size_t Rows, size_t Blocks>
LYNX_AVX512_INLINE void TopInRegisters(TopRow* const (&rows)[Rows], const uint8_t* allowed,
                                       size_t count, size_t k) {
  constexpr size_t kWords = Blocks / 4;
  const __m512 none = _mm512_set1_ps(-kInf);
  __m512 v[Rows][Blocks];
  size_t wanted[Rows];  // What a row will hold.
  size_t rounds = 0;
  for (size_t r = 0; r < Rows; ++r) {
    const TopRow& row = *rows[r];
    uint64_t barred[kWords] = {};
    for (size_t i = 0; row.barred != nullptr && i < k; ++i) {
      barred[row.barred[i] / 64] |= uint64_t{1} << (row.barred[i] % 64);
    }
    wanted[r] = row.held;
    for (size_t b = 0; b < Blocks; ++b) {
      const auto lanes = static_cast<__mmask16>(barred[b / 4] >> (16 * (b % 4)));
      v[r][b] = _mm512_mask_mov_ps(Candidates(row.scores, allowed, count, b), lanes, none);
      wanted[r] +=
          static_cast<size_t>(__builtin_popcount(_mm512_cmp_ps_mask(v[r][b], none, _CMP_GT_OQ)));
    }
    wanted[r] = std::min(wanted[r], k);
    rounds = std::max(rounds, wanted[r] - row.held);
  }
  for (size_t i = 0; i < rounds; ++i) {
    __m512 largest[Rows];
    for (size_t r = 0; r < Rows; ++r) {
      largest[r] = v[r][0];
      for (size_t b = 1; b < Blocks; ++b) largest[r] = _mm512_max_ps(largest[r], v[r][b]);
    }
    const __m512 best =
        LargestOfEach(largest[0], largest[1 % Rows], largest[2 % Rows], largest[3 % Rows]);
    for (size_t r = 0; r < Rows; ++r) {
      TopRow& row = *rows[r];
      const __m512 own = _mm512_permutexvar_ps(_mm512_set1_epi32(static_cast<int>(r)), best);
      uint64_t found[kWords] = {};
      for (size_t b = 0; b < Blocks; ++b) {
        const __mmask16 lanes = _mm512_cmp_ps_mask(v[r][b], own, _CMP_EQ_OQ);
        found[b / 4] |= static_cast<uint64_t>(lanes) << (16 * (b % 4));
        v[r][b] = _mm512_mask_mov_ps(v[r][b], lanes, none);
      }
      size_t w = 0;
      do {  // Nearly always once: as often as there are equals.
        if (kWords > 1 && found[0] == 0) w = 1;
        // Without a branch, which nothing could predict: rows end at different times.
        int32_t beyond;
        int32_t* id = row.held < wanted[r] ? row.ids + row.held : &beyond;
        *id = static_cast<int32_t>(64 * w) + __builtin_ctzll(found[w]);
        row.held += row.held < wanted[r] ? 1 : 0;
        found[w] &= found[w] - 1;
      } while ((found[0] | found[kWords - 1]) != 0 && row.held < wanted[r]);
    }
  }
}

template <size_t Rows, size_t Blocks>
LYNX_AVX512 void TopOfRows(TopRow* rows, size_t row_count, const uint8_t* allowed, size_t count,
                           size_t k) {
  size_t first = 0;
  for (; first + 1 < row_count; first += Rows) {
    float nothing[16 * Blocks];
    TopRow filler = {.scores = nothing};  // In a group that lacks rows.
    if (first + Rows > row_count) std::fill(std::begin(nothing), std::end(nothing), -kInf);
    TopRow* group[Rows];
    for (size_t r = 0; r < Rows; ++r) group[r] = first + r < row_count ? rows + first + r : &filler;
    TopInRegisters<Rows, Blocks>(group, allowed, count, k);
  }
  if (first < row_count) TopInRegisters<1, Blocks>({rows + first}, allowed, count, k);
}

// Rows longer than registers hold: the best of each block first, then the best block's next.
constexpr size_t kMostBlocks = 64;

LYNX_AVX512 void TopOfManyBlocks(TopRow& row, const uint8_t* allowed, size_t count, size_t k) {
  alignas(64) float v[kMostBlocks * 16];
  alignas(64) float best[kMostBlocks];
  const size_t blocks = (count + 15) / 16;
  const __m512 none = _mm512_set1_ps(-kInf);
  for (size_t b = 0; b < kMostBlocks; b += 16) _mm512_store_ps(best + b, none);
  for (size_t b = 0; b < blocks; ++b) {
    const __m512 block = Candidates(row.scores, allowed, count, b);
    _mm512_store_ps(v + 16 * b, block);
    best[b] = _mm512_reduce_max_ps(block);
  }
  for (size_t i = 0; row.barred != nullptr && i < k; ++i) {
    const auto b = static_cast<size_t>(row.barred[i] / 16);
    v[row.barred[i]] = -kInf;
    best[b] = _mm512_reduce_max_ps(_mm512_load_ps(v + 16 * b));
  }
  while (row.held < k) {
    __m512 largest = none;
    for (size_t b = 0; b < blocks; b += 16)
      largest = _mm512_max_ps(largest, _mm512_load_ps(best + b));
    const float wanted = _mm512_reduce_max_ps(largest);
    if (wanted == -kInf) return;
    size_t b = 0;
    while (best[b] != wanted) ++b;
    float* block = v + 16 * b;
    const __mmask16 has =
        _mm512_cmp_ps_mask(_mm512_load_ps(block), _mm512_set1_ps(wanted), _CMP_EQ_OQ);
    const int lane = __builtin_ctz(has);
    row.ids[row.held++] = static_cast<int32_t>(16 * b) + lane;
    block[lane] = -kInf;
    best[b] = _mm512_reduce_max_ps(_mm512_load_ps(block));
  }
}

LYNX_AVX512 void Top(TopRow* rows, size_t row_count, const uint8_t* allowed, size_t count,
                     size_t k) {
  if (count <= 64) {
    TopOfRows<4, 4>(rows, row_count, allowed, count, k);
  } else if (count <= 128) {
    TopOfRows<2, 8>(rows, row_count, allowed, count, k);
  } else if (count <= kMostBlocks * 16) {
    for (size_t r = 0; r < row_count; ++r) TopOfManyBlocks(rows[r], allowed, count, k);
  } else {
    PortableRowOps().top(rows, row_count, allowed, count, k);
  }
}

LYNX_AVX512 void Bin(const BinRule& rule, const uint64_t (&unit)[8], const float* scores,
                     size_t count, uint8_t* bins, uint64_t* liking) {
  const __m512d best = _mm512_set1_pd(rule.best);
  const __m512d alpha = _mm512_set1_pd(rule.alpha);
  const __m512d last = _mm512_set1_pd(rule.last);
  const __m512d scale = _mm512_set1_pd(rule.unit);
  const bool scaled = rule.unit != 1;
  const __m512i units = _mm512_loadu_si512(unit);
  for (size_t e = 0; e < count; e += 8) {
    const auto lanes = static_cast<__mmask8>(count - e >= 8 ? 0xFF : (1u << (count - e)) - 1);
    const __m512d gap =
        _mm512_sub_pd(best, _mm512_cvtps_pd(_mm256_maskz_loadu_ps(lanes, scores + e)));
    const __mmask8 apart = _mm512_cmp_pd_mask(gap, _mm512_setzero_pd(), _CMP_NEQ_UQ);
    const __m512d value = _mm512_mul_pd(alpha, scaled ? _mm512_div_pd(gap, scale) : gap);
    const __m512d bin = _mm512_maskz_min_pd(apart, value, last);
    const __m256i whole = _mm512_cvttpd_epi32(bin);
    _mm256_mask_cvtepi32_storeu_epi8(bins + e, lanes, whole);
    const __m512i added = _mm512_permutexvar_epi64(_mm512_cvtepi32_epi64(whole), units);
    const __m512i sum = _mm512_add_epi64(_mm512_maskz_loadu_epi64(lanes, liking + e), added);
    _mm512_mask_storeu_epi64(liking + e, lanes, sum);
  }
}

// An expert's place is the number of those before it.
LYNX_AVX512 void Order(const uint64_t* liking, size_t count, int32_t* ids) {
  if (count > 128) {  // Comparing all with all grows too fast.
    PortableRowOps().order(liking, count, ids);
    return;
  }
  for (size_t e = 0; e < count; ++e) {
    const __m512i own = _mm512_set1_epi64(static_cast<int64_t>(liking[e]));
    int place = 0;
    for (size_t b = 0; b < count; b += 8) {
      const auto lanes = static_cast<__mmask8>(count - b >= 8 ? 0xFF : (1u << (count - b)) - 1);
      const __m512i others = _mm512_maskz_loadu_epi64(lanes, liking + b);
      place += __builtin_popcount(_mm512_cmpgt_epu64_mask(others, own));
    }
    ids[place] = static_cast<int32_t>(e);
  }
}

}  // namespace

const RowOps* Avx512RowOps() {
  static constexpr RowOps kOps = {CountUsable, Top, Bin, Order};
  static const bool usable =
      __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
      __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2");
  return usable ? &kOps : nullptr;
}

#else

const RowOps* Avx512RowOps() { return nullptr; }

#endif

}  // namespace lynx::moe::internal
