#include "kernels/core/simd.h"
#include "kernels/gemm/dot_tile.h"
#include "kernels/moe/expert_ffn_backends.h"

namespace lynx::kernels::LYNX_KERNEL_ISA {
namespace {

constexpr int64_t kRowBlock = 32;  // Rows that pass over an item's weights together.
constexpr int kTile = kTileRows * kTileColumns;
static_assert(kTile <= kLanes);

// `rows` products with `columns` rows of w, from row `first` on.
void Dot(const float* const* x, int rows, const Matrix& w, int64_t first, int columns, int64_t n,
         float* out) {
  switch (w.dtype) {
    case DType::kF32:
      return DotTileAny(x, rows, static_cast<const float*>(w.data) + first * n, columns, n, out);
    case DType::kBf16:
      return DotTileAny(x, rows, static_cast<const Bf16*>(w.data) + first * n, columns, n, out);
    case DType::kF16:
      return DotTileAny(x, rows, static_cast<const F16*>(w.data) + first * n, columns, n, out);
  }
}

// Calls tile(entry, rows, column, columns) over all entries and columns [begin, end), such that the
// weights of a few columns meet a block of rows while both are in cache.
template <typename Fn>
void ForTiles(int64_t entries, int64_t begin, int64_t end, Fn tile) {
  for (int64_t block = 0; block < entries; block += kRowBlock) {
    const int64_t block_end = block + kRowBlock < entries ? block + kRowBlock : entries;
    for (int64_t c = begin; c < end; c += kTileColumns) {
      const int columns = static_cast<int>(end - c < kTileColumns ? end - c : kTileColumns);
      for (int64_t i = block; i < block_end; i += kTileRows) {
        tile(i, static_cast<int>(block_end - i < kTileRows ? block_end - i : kTileRows), c,
             columns);
      }
    }
  }
}

}  // namespace

void ExpertFfnInner(const ExpertFfnArgs& args, const internal::ExpertEntries& entries,
                    int64_t begin, int64_t end) {
  const ExpertWeights& expert = args.experts[entries.expert];
  ForTiles(entries.count, begin, end, [&](int64_t entry, int rows, int64_t column, int columns) {
    const float* x[kTileRows];
    for (int i = 0; i < rows; ++i) {
      x[i] = args.x + entries.order[entries.first + entry + i] / args.top_k * args.x_stride;
    }
    float gate[kLanes] = {};
    float up[kLanes] = {};
    Dot(x, rows, expert.gate, column, columns, args.hidden, gate);
    Dot(x, rows, expert.up, column, columns, args.hidden, up);
    F32x16 value = Mul(Silu(Load(gate)), Load(up));
    if (args.round_bf16) value = RoundBf16(value);
    float values[kLanes];
    Store(values, value);
    for (int i = 0; i < rows; ++i) {
      float* to = entries.inner + (entries.first + entry + i) * args.intermediate + column;
      for (int c = 0; c < columns; ++c) to[c] = values[i * kTileColumns + c];
    }
  });
}

void ExpertFfnOuter(const ExpertFfnArgs& args, const internal::ExpertEntries& entries,
                    int64_t begin, int64_t end) {
  const ExpertWeights& expert = args.experts[entries.expert];
  ForTiles(entries.count, begin, end, [&](int64_t entry, int rows, int64_t column, int columns) {
    const float* x[kTileRows];
    for (int i = 0; i < rows; ++i) {
      x[i] = entries.inner + (entries.first + entry + i) * args.intermediate;
    }
    float down[kTile];
    Dot(x, rows, expert.down, column, columns, args.intermediate, down);
    for (int i = 0; i < rows; ++i) {
      float* to = entries.outer + entries.order[entries.first + entry + i] * args.hidden + column;
      for (int c = 0; c < columns; ++c) to[c] = down[i * kTileColumns + c];
    }
  });
}

void ExpertFfnCombine(const ExpertFfnArgs& args, const float* outer, int64_t begin, int64_t end) {
  const int64_t whole = args.hidden / kLanes * kLanes;
  for (int64_t r = begin; r < end; ++r) {
    const float* weights = args.weights + r * args.top_k;
    const float* ranks = outer + r * args.top_k * args.hidden;
    float* y = args.y + r * args.y_stride;
    for (int64_t h = 0; h < whole; h += kLanes) {
      F32x16 sum = Zero();
      for (int64_t j = 0; j < args.top_k; ++j) {
        sum = MulAdd(Set1(weights[j]), Load(ranks + j * args.hidden + h), sum);
      }
      Store(y + h, Add(Load(y + h), sum));
    }
    if (const int64_t tail = args.hidden - whole; tail > 0) {
      F32x16 sum = Zero();
      for (int64_t j = 0; j < args.top_k; ++j) {
        sum = MulAdd(Set1(weights[j]), LoadPartial(ranks + j * args.hidden + whole, tail), sum);
      }
      StorePartial(y + whole, Add(LoadPartial(y + whole, tail), sum), tail);
    }
  }
}

}  // namespace lynx::kernels::LYNX_KERNEL_ISA
