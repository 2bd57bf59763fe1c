#pragma once

// For BF16_BODIES only: the instructions that multiply bf16 by bf16, next to those of simd.h.
//
// Both take pairs of elements, sum in float32 and flush denormal numbers, of operands as of
// results.

#include "kernels/core/simd.h"

#if !defined(__AVX512BF16__)
#error "bf16_dot.h is for BF16_BODIES of lynx_kernel_library()"
#endif

namespace lynx::kernels::LYNX_KERNEL_ISA {

// Sixteen pairs.
struct Bf16Pairs {
  __m512bh v;
};

inline Bf16Pairs LoadBf16Pairs(const Bf16* p) {  // 32 elements
  return {reinterpret_cast<__m512bh>(_mm512_loadu_si512(p))};
}
inline Bf16Pairs BroadcastBf16Pair(const Bf16* p) {
  int32_t pair;
  __builtin_memcpy(&pair, p, sizeof(pair));
  return {reinterpret_cast<__m512bh>(_mm512_set1_epi32(pair))};
}
// Per lane: a.odd * b.odd added to sum, then a.even * b.even.
inline F32x16 DotPairs(Bf16Pairs a, Bf16Pairs b, F32x16 sum) {
  return {_mm512_dpbf16_ps(sum.v, a.v, b.v)};
}

// Of sixteen pairs, given the even and the odd elements apart: the first eight, and the others.
inline void Interleave(F32x16 even, F32x16 odd, F32x16* first, F32x16* second) {
  const __m512i low = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
  const __m512i high = _mm512_add_epi32(low, _mm512_set1_epi32(8));
  *first = {_mm512_permutex2var_ps(even.v, low, odd.v)};
  *second = {_mm512_permutex2var_ps(even.v, high, odd.v)};
}

// While it lives, arithmetic on float32 flushes as the instructions above do.
class FlushDenormals {
 public:
  FlushDenormals() : before_(_mm_getcsr()) { Set(before_ | 0x8040); }
  ~FlushDenormals() { Set(before_); }
  FlushDenormals(const FlushDenormals&) = delete;
  FlushDenormals& operator=(const FlushDenormals&) = delete;

 private:
  // To the compiler arithmetic does not depend on this, but the loads and stores around it do.
  static void Set(uint32_t mxcsr) { asm volatile("ldmxcsr %0" : : "m"(mxcsr) : "memory"); }

  const uint32_t before_;
};

#if defined(__AMX_BF16__)

// Shapes of the eight tile registers of a thread. Stores of rows may be seen late by tile loads
// unless the compiler is told, hence the clobbers below: to it a tile is no memory operand.
struct alignas(64) TileShapes {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};

  // `columns` of four bytes. A tile without rows or columns is not used.
  void Set(int tile, int row_count, int columns) {
    if (row_count == 0 || columns == 0) return;
    rows[tile] = static_cast<uint8_t>(row_count);
    row_bytes[tile] = static_cast<uint16_t>(4 * columns);
  }
};
static_assert(sizeof(TileShapes) == 64);

// Also zeroes all tiles.
inline void ConfigureTiles(const TileShapes& shapes) {
  asm volatile("ldtilecfg %0" : : "m"(shapes) : "memory");
}
// Back to the state in which a context switch need not save the tiles.
inline void ReleaseTiles() { asm volatile("tilerelease" : : : "memory"); }

template <int kTile>
inline void ZeroTile() {
  asm volatile("tilezero %%tmm%c0" : : "n"(kTile));
}
template <int kTile>
inline void LoadTile(const void* rows, int64_t stride_bytes) {
  asm volatile("tileloadd (%0,%1,1), %%tmm%c2"
               :
               : "r"(rows), "r"(stride_bytes), "n"(kTile)
               : "memory");
}
template <int kTile>
inline void StoreTile(void* rows, int64_t stride_bytes) {
  asm volatile("tilestored %%tmm%c2, (%0,%1,1)"
               :
               : "r"(rows), "r"(stride_bytes), "n"(kTile)
               : "memory");
}
// sum[r][c] += over pairs k of a[r][k].even * b[k][c].even, plus the same of the odd ones.
template <int kSum, int kA, int kB>
inline void DotTiles() {
  asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "n"(kSum), "n"(kA), "n"(kB));
}

#endif

}  // namespace lynx::kernels::LYNX_KERNEL_ISA
