// Panel products of bf16 by bf16 with instructions of their own.

#include "kernels/core/bf16_dot.h"
#include "kernels/core/fixed_rows.h"
#include "kernels/gemm/panel_product.h"
#include "kernels/gemm/prefetch.h"

namespace lynx::kernels::LYNX_KERNEL_ISA {
namespace {

constexpr int64_t kBlock = kPanelRows * kPanelDepth;  // Elements of a panel from 32 inputs.
constexpr int64_t kHalf = kBlock / 2;

int64_t Blocks(const internal::PanelProductArgs& args) {
  return (args.in + kPanelDepth - 1) / kPanelDepth;
}

#if defined(__AMX_BF16__)

constexpr int kTile = 16;             // Rows of a tile.
constexpr int kTileRows = 2 * kTile;  // Rows whose sums four tiles hold.
// Depth after which other rows take their turn with the same weights: those stay in L1 meanwhile.
// The sums wait in memory as they are, so this does not touch their bits.
constexpr int64_t kTurn = 512 / kPanelDepth;

// Tiles 0 to 3 are sums, of the first 16 rows and of the others; 4 and 5 the rows, 6 and 7 weights.
void Shape(int rows) {
  const int first = rows < kTile ? rows : kTile;
  TileShapes shapes;
  for (int tile : {0, 1, 4}) shapes.Set(tile, first, kLanes);
  for (int tile : {2, 3, 5}) shapes.Set(tile, rows - first, kLanes);
  for (int tile : {6, 7}) shapes.Set(tile, kTile, kLanes);
  ConfigureTiles(shapes);
}

// Adds `blocks` blocks of depth to the sums of up to kTileRows rows.
template <bool kBoth>
void Turn(const Bf16* x, int64_t x_stride, const Bf16* panel, int64_t blocks, bool first,
          Prefetch* ahead, float* out) {
  constexpr int64_t kOutStride = kPanelRows * sizeof(float);
  const int64_t x_bytes = x_stride * static_cast<int64_t>(sizeof(Bf16));
  float* below = out + kTile * kPanelRows;
  if (first) {
    ZeroTile<0>();
    ZeroTile<1>();
    if constexpr (kBoth) {
      ZeroTile<2>();
      ZeroTile<3>();
    }
  } else {
    LoadTile<0>(out, kOutStride);
    LoadTile<1>(out + kTile, kOutStride);
    if constexpr (kBoth) {
      LoadTile<2>(below, kOutStride);
      LoadTile<3>(below + kTile, kOutStride);
    }
  }
  for (int64_t b = 0; b < blocks; ++b, x += kPanelDepth, panel += kBlock) {
    ahead->Step();
    LoadTile<6>(panel, 64);
    LoadTile<4>(x, x_bytes);
    DotTiles<0, 4, 6>();
    LoadTile<7>(panel + kHalf, 64);
    DotTiles<1, 4, 7>();
    if constexpr (kBoth) {
      LoadTile<5>(x + kTile * x_stride, x_bytes);
      DotTiles<2, 5, 6>();
      DotTiles<3, 5, 7>();
    }
  }
  StoreTile<0>(out, kOutStride);
  StoreTile<1>(out + kTile, kOutStride);
  if constexpr (kBoth) {
    StoreTile<2>(below, kOutStride);
    StoreTile<3>(below + kTile, kOutStride);
  }
}

#else

constexpr int kTileRows = 8;

template <int R>
void Tile(const Bf16* x, int64_t x_stride, const Bf16* panel, int64_t blocks, Prefetch* ahead,
          float* out) {
  F32x16 sum[R][2];
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) sum[r][0] = sum[r][1] = Zero();
  for (int64_t b = 0; b < blocks; ++b, x += kPanelDepth, panel += kBlock) {
    ahead->Step();
    for (int64_t i = 0; i < kPanelDepth; i += 2) {
      const Bf16Pairs first = LoadBf16Pairs(panel + i * kLanes);
      const Bf16Pairs second = LoadBf16Pairs(panel + kHalf + i * kLanes);
#pragma GCC unroll 16
      for (int r = 0; r < R; ++r) {
        const Bf16Pairs pair = BroadcastBf16Pair(x + r * x_stride + i);
        sum[r][0] = DotPairs(pair, first, sum[r][0]);
        sum[r][1] = DotPairs(pair, second, sum[r][1]);
      }
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
    Store(out + r * kPanelRows, sum[r][0]);
    Store(out + r * kPanelRows + kLanes, sum[r][1]);
  }
}

#endif

}  // namespace

void PanelProduct(const internal::PanelProductArgs& args) {
  const auto* x = static_cast<const Bf16*>(args.x);
  const auto* panel = static_cast<const Bf16*>(args.panel);
  const int64_t blocks = Blocks(args);
  const int64_t tiles = (args.rows + kTileRows - 1) / kTileRows;
  const int64_t bytes = blocks * kBlock * static_cast<int64_t>(sizeof(Bf16));
#if defined(__AMX_BF16__)
  const int64_t turn = tiles == 1 ? blocks : kTurn;
  constexpr int64_t kTurnBytes = kTurn * kBlock * static_cast<int64_t>(sizeof(Bf16));
  Prefetch ahead(args.panel, bytes, tiles * blocks, kTurnBytes, args.stream_end);
  int shaped_rows = 0;
  for (int64_t b = 0; b < blocks; b += turn) {
    const int64_t depth = blocks - b < turn ? blocks - b : turn;
    for (int64_t r = 0; r < args.rows; r += kTileRows) {
      const int rows = static_cast<int>(args.rows - r < kTileRows ? args.rows - r : kTileRows);
      if (rows != shaped_rows) Shape(rows);
      shaped_rows = rows;
      const auto body = rows > kTile ? &Turn<true> : &Turn<false>;
      body(x + r * args.x_stride + b * kPanelDepth, args.x_stride, panel + b * kBlock, depth,
           b == 0, &ahead, args.out + r * kPanelRows);
    }
  }
  ReleaseTiles();
#else
  Prefetch ahead(args.panel, bytes, tiles * blocks, AheadBytes(bytes, tiles), args.stream_end);
  for (int64_t r = 0; r < args.rows; r += kTileRows) {
    const int rows = static_cast<int>(args.rows - r < kTileRows ? args.rows - r : kTileRows);
    WithFixedRows<kTileRows>(rows, [&]<int R>() {
      Tile<R>(x + r * args.x_stride, args.x_stride, panel, blocks, &ahead,
              args.out + r * kPanelRows);
    });
  }
#endif
}

}  // namespace lynx::kernels::LYNX_KERNEL_ISA
