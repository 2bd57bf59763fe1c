// Panel products by fused multiply and add: every type on every instruction set.

#include "kernels/core/fixed_rows.h"
#include "kernels/core/simd.h"
#include "kernels/gemm/panel_product.h"
#include "kernels/gemm/prefetch.h"

namespace lynx::kernels::LYNX_KERNEL_ISA {
namespace {

// Rows and vectors of outputs whose sums the registers hold, beside a pair of weights and of x.
#if defined(__AVX512F__)
constexpr int kTileRows = 8;
constexpr int kTileVectors = 2;
#elif defined(__AVX2__)
constexpr int kTileRows = 4;
constexpr int kTileVectors = 1;
#else
constexpr int kTileRows = 2;
constexpr int kTileVectors = 1;
#endif

inline float Widen(float x) { return x; }
inline float Widen(Bf16 x) {
  const uint32_t bits = uint32_t{x.bits} << 16;
  float value;
  __builtin_memcpy(&value, &bits, sizeof(value));
  return value;
}

// Weights of inputs i (even) and i + 1 for outputs 16 v .. 16 v + 15, where `block` holds inputs
// from a multiple of kPanelDepth on and i counts from there.
inline void LoadWeights(const Bf16* block, int64_t i, int v, F32x16* even, F32x16* odd) {
  LoadPairs(block + v * (kPanelRows * kPanelDepth / 2) + i * kLanes, even, odd);
}
template <typename W>
inline void LoadWeights(const W* block, int64_t i, int v, F32x16* even, F32x16* odd) {
  *even = Load(block + i * kPanelRows + v * kLanes);
  *odd = Load(block + (i + 1) * kPanelRows + v * kLanes);
}
inline F32x16 LoadLastWeights(const Bf16* block, int64_t i, int v) {
  F32x16 even, odd;
  LoadWeights(block, i, v, &even, &odd);
  return even;
}
template <typename W>
inline F32x16 LoadLastWeights(const W* block, int64_t i, int v) {
  return Load(block + i * kPanelRows + v * kLanes);
}

// R rows and V vectors of outputs from v on. One accumulator per product, walked from input 0 on.
// All loops over a tile are unrolled, which is what keeps the accumulators in registers.
template <int R, int V, typename X, typename W>
void Tile(const X* x, int64_t x_stride, const W* panel, int64_t in, int v, Prefetch* ahead,
          float* out) {
  F32x16 sum[R][V];
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 16
    for (int j = 0; j < V; ++j) sum[r][j] = Zero();
  }
  for (int64_t begin = 0; begin < in; begin += kPanelDepth) {
    ahead->Step();
    const W* block = panel + begin * kPanelRows;
    const int64_t depth = in - begin < kPanelDepth ? in - begin : kPanelDepth;
    int64_t i = 0;
    for (; i + 1 < depth; i += 2) {
      F32x16 even[V], odd[V];
#pragma GCC unroll 16
      for (int j = 0; j < V; ++j) LoadWeights(block, i, v + j, &even[j], &odd[j]);
#pragma GCC unroll 16
      for (int r = 0; r < R; ++r) {
        F32x16 x_even, x_odd;
        BroadcastPair(x + r * x_stride + begin + i, &x_even, &x_odd);
#pragma GCC unroll 16
        for (int j = 0; j < V; ++j) sum[r][j] = MulAdd(x_even, even[j], sum[r][j]);
#pragma GCC unroll 16
        for (int j = 0; j < V; ++j) sum[r][j] = MulAdd(x_odd, odd[j], sum[r][j]);
      }
    }
    if (i < depth) {
#pragma GCC unroll 16
      for (int j = 0; j < V; ++j) {
        const F32x16 weights = LoadLastWeights(block, i, v + j);
#pragma GCC unroll 16
        for (int r = 0; r < R; ++r) {
          sum[r][j] = MulAdd(Set1(Widen(x[r * x_stride + begin + i])), weights, sum[r][j]);
        }
      }
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 16
    for (int j = 0; j < V; ++j) Store(out + r * kPanelRows + (v + j) * kLanes, sum[r][j]);
  }
}

template <typename X, typename W>
void Product(const internal::PanelProductArgs& args) {
  constexpr int kVectors = kPanelRows / kLanes;
  const auto* x = static_cast<const X*>(args.x);
  const auto* panel = static_cast<const W*>(args.panel);
  const int64_t tiles = (args.rows + kTileRows - 1) / kTileRows * (kVectors / kTileVectors);
  const int64_t blocks = (args.in + kPanelDepth - 1) / kPanelDepth;
  const int64_t bytes = blocks * kPanelDepth * kPanelRows * static_cast<int64_t>(sizeof(W));
  Prefetch ahead(args.panel, bytes, tiles * blocks, AheadBytes(bytes, tiles), args.stream_end);
  for (int64_t r = 0; r < args.rows; r += kTileRows) {
    const int rows = static_cast<int>(args.rows - r < kTileRows ? args.rows - r : kTileRows);
    for (int v = 0; v < kVectors; v += kTileVectors) {
      WithFixedRows<kTileRows>(rows, [&]<int R>() {
        Tile<R, kTileVectors>(x + r * args.x_stride, args.x_stride, panel, args.in, v, &ahead,
                              args.out + r * kPanelRows);
      });
    }
  }
}

template <typename X>
void ProductOf(const internal::PanelProductArgs& args) {
  switch (args.panel_dtype) {
    case DType::kF32:
      return Product<X, float>(args);
    case DType::kBf16:
      return Product<X, Bf16>(args);
    case DType::kF16:
      return Product<X, F16>(args);
  }
}

}  // namespace

void PanelProduct(const internal::PanelProductArgs& args) {
  if (args.x_dtype == DType::kF32) {
    ProductOf<float>(args);
  } else {
    ProductOf<Bf16>(args);
  }
}

}  // namespace lynx::kernels::LYNX_KERNEL_ISA
