#include "common/model/row_source.h"

#include <algorithm>
#include <utility>

namespace lynx::model {
namespace {

template <typename T>
void Gather(const std::byte* data, int64_t width, int64_t stride, void* to) {
  const auto* from = reinterpret_cast<const T*>(data);
  for (int64_t c = 0; c < width; ++c) static_cast<T*>(to)[c] = from[c * stride];
}

}  // namespace

RowSource PlainRows(const std::byte* data, DType dtype, int64_t rows, int64_t width) {
  const int64_t row_bytes = width * static_cast<int64_t>(SizeOf(dtype));
  return {.dtype = dtype,
          .rows = rows,
          .width = width,
          .read = [=](int64_t row, void*) { return data + row * row_bytes; },
          .memory = {{data, static_cast<size_t>(rows * row_bytes)}}};
}

RowSource StridedRows(const std::byte* data, DType dtype, int64_t rows, int64_t width,
                      int64_t row_stride, int64_t column_stride,
                      std::span<const std::byte> memory) {
  const auto size = static_cast<int64_t>(SizeOf(dtype));
  return {.dtype = dtype,
          .rows = rows,
          .width = width,
          .read = [=](int64_t row, void* scratch) -> const void* {
            const std::byte* first = data + row * row_stride * size;
            if (size == 4) {
              Gather<uint32_t>(first, width, column_stride, scratch);
            } else {
              Gather<uint16_t>(first, width, column_stride, scratch);
            }
            return scratch;
          },
          .memory = {memory}};
}

RowSource RowRange(RowSource source, int64_t first, int64_t count) {
  source.rows = count;
  source.read = [first, read = std::move(source.read)](int64_t row, void* scratch) {
    return read(first + row, scratch);
  };
  return source;
}

RowSource ColumnRange(RowSource source, int64_t first, int64_t count) {
  source.scratch_width = std::max(source.scratch_width, source.width);
  source.width = count;
  source.read = [offset = first * static_cast<int64_t>(SizeOf(source.dtype)),
                 read = std::move(source.read)](int64_t row, void* scratch) -> const void* {
    return static_cast<const std::byte*>(read(row, scratch)) + offset;
  };
  return source;
}

RowSource HalfSplitHeads(RowSource source, int64_t head_dim, int64_t rotary_dim,
                         int64_t rotary_begin) {
  source.read = [=, read = std::move(source.read)](int64_t row, void* scratch) {
    const int64_t at = row % head_dim - rotary_begin;
    if (at < 0 || at >= rotary_dim) return read(row, scratch);
    const int64_t half = rotary_dim / 2;
    return read(row - at + (at < half ? 2 * at : 2 * (at - half) + 1), scratch);
  };
  return source;
}

}  // namespace lynx::model
