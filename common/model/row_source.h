#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "common/base/dtype.h"

namespace lynx::model {

// Rows of a matrix as a checkpoint has them, read one at a time while they are packed: so that what
// is stored in another order or type is never in memory a second time.
struct RowSource {
  DType dtype = DType::kF32;  // Of what is read.
  int64_t rows = 0;
  int64_t width = 0;
  // The `width` contiguous elements of a row: where they lie, or written to `scratch`, which has
  // room for them and is aligned for any. Called by several threads.
  std::function<const void*(int64_t row, void* scratch)> read;
  int64_t scratch_width = 0;  // Elements that `scratch` has room for, where they are more.
  // What it reads: not needed once packed.
  std::vector<std::span<const std::byte>> memory;
};

// Row-major, as nearly all are.
RowSource PlainRows(const std::byte* data, DType dtype, int64_t rows, int64_t width);

// Element (r, c) is data[r * row_stride + c * column_stride]; `memory` is where all of them lie.
RowSource StridedRows(const std::byte* data, DType dtype, int64_t rows, int64_t width,
                      int64_t row_stride, int64_t column_stride, std::span<const std::byte> memory);

// `count` rows from `first` on; and of each row `count` elements from `first` on.
RowSource RowRange(RowSource source, int64_t first, int64_t count);
RowSource ColumnRange(RowSource source, int64_t first, int64_t count);

// Heads of which RoPE turns `rotary_dim` rows from `rotary_begin` on in pairs of neighbours, in the
// order of pairs half of them apart, in which we turn them. Of queries and keys alike this changes
// no score.
RowSource HalfSplitHeads(RowSource source, int64_t head_dim, int64_t rotary_dim,
                         int64_t rotary_begin = 0);

}  // namespace lynx::model
