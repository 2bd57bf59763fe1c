#pragma once

#include "kernels/gemm/panel_product_cuda.cuh"

// Products of many rows, bf16 by bf16: a block of 8 warps has up to 4 panels and 128 rows, both by
// way of shared memory. Sums are in the order of panel_product_cuda.cuh, so bits are the same.
namespace lynx::kernels::device {

inline constexpr int kTilePanels = 4;
inline constexpr int kTileBlockRows = 128;
inline constexpr int kTileStages = 4;

struct TileShared {
  uint4 weights[kTileStages][kTilePanels][4][32];  // [lane], as in LaneWeights.
  uint4 x[kTileStages][kTileBlockRows][4];
};

// Panels [first_panel, panels) of `matrix`, at most kTilePanels of them, times `count` rows, at
// most kTileBlockRows.
//
//   row_at(i)                     where row i begins, at a multiple of 16 bytes
//   use(row, panel, output, sum)  of each row and output of a panel; also of rows from `count` and
//                                 panels from `panels` on, which are nobody's. By whole warps, in
//                                 which lane l has outputs l / 4 * 4 .. + 3 of one panel.
template <typename RowAt, typename Use>
__device__ void MultiplyTile(TileShared& shared, const std::byte* matrix, int depth,
                             int first_panel, int panels, int count, const RowAt& row_at,
                             const Use& use) {
  constexpr int kTiles = kTileBlockRows / 2 / kTileRows;
  constexpr int kRowsAThread = kTileBlockRows * 4 / kPanelThreads;
  const int thread = static_cast<int>(threadIdx.x);
  const int warp = thread / 32, lane = thread % 32;
  // A warp has one panel and half of the rows, of which some of 8 may be beyond the last.
  const int panel = warp % kTilePanels, half = warp / kTilePanels;
  const int tiles = CeilDiv(count, kTileRows);
  const int my_tiles = Min(tiles - half * kTiles, kTiles);
  const int blocks = CeilDiv(depth, kBlockDepth);
  const int64_t panel_bytes = PanelBytesOf<uint16_t>(depth);

  const uint16_t* rows[kRowsAThread];
  LYNX_UNROLL
  for (int i = 0; i < kRowsAThread; ++i) {
    const int row = thread / 4 + i * (kPanelThreads / 4);
    rows[i] = row_at(Min(row, count - 1)) + thread % 4 * 8;
  }
  // What lies beyond the last panel or row is the last one again.
  const auto fetch = [&](int block) {
    if (block < blocks) {
      const int stage = block % kTileStages;
      for (int c = thread; c < kTilePanels * 4 * 32; c += kPanelThreads) {
        const int p = c / 128, i = c / 32 % 4;
        const std::byte* from = matrix + Min(first_panel + p, panels - 1) * panel_bytes;
        CopyAsync16(&shared.weights[stage][p][i][lane],
                    from + int64_t{block} * kBlockBytes + WeightOffset(lane, i));
      }
      LYNX_UNROLL
      for (int i = 0; i < kRowsAThread; ++i) {
        const int row = thread / 4 + i * (kPanelThreads / 4);
        if (row < tiles * kTileRows) {
          CopyAsync16(&shared.x[stage][row][thread % 4], rows[i] + block * kBlockDepth);
        }
      }
    }
    CommitCopies();
  };
  for (int ahead = 0; ahead < kTileStages - 1; ++ahead) fetch(ahead);

  float sums[kTiles][2][4], totals[kTiles][2][4];
  const auto each = [](const auto& visit) {
    LYNX_UNROLL
    for (int n = 0; n < kTiles; ++n) {
      LYNX_UNROLL
      for (int i = 0; i < 8; ++i) visit(n, i / 4, i % 4);
    }
  };
  each([&](int n, int h, int i) { sums[n][h][i] = totals[n][h][i] = 0; });
  const auto end_segment = [&] {
    each([&](int n, int h, int i) {
      totals[n][h][i] = totals[n][h][i] + sums[n][h][i];
      sums[n][h][i] = 0;
    });
  };
  int segment = 0;
  LYNX_NO_UNROLL
  for (int block = 0; block < blocks; ++block) {
    if (block > 0 && block == SegmentBegin(blocks, segment + 1)) end_segment();
    while (block >= SegmentBegin(blocks, segment + 1)) ++segment;
    WaitForCopies<kTileStages - 2>();
    __syncthreads();
    fetch(block + kTileStages - 1);
    const int stage = block % kTileStages;
    LaneWeights<uint16_t> weights;
    LYNX_UNROLL
    for (int i = 0; i < 4; ++i) weights.words[i] = shared.weights[stage][panel][i][lane];
    LYNX_UNROLL
    for (int n = 0; n < kTiles; ++n) {
      if (n >= my_tiles) continue;
      const int row = (half * kTiles + n) * kTileRows + lane / 4;
      MultiplyBlock(weights, shared.x[stage][row][lane % 4], sums[n]);
    }
  }
  end_segment();
  each([&](int n, int h, int i) {
    use((half * kTiles + n) * kTileRows + lane % 4 * 2 + i % 2, first_panel + panel,
        lane / 4 * 4 + h * 2 + i / 2, totals[n][h][i]);
  });
  __syncthreads();  // All stages have been read.
}

}  // namespace lynx::kernels::device
