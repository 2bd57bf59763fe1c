#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "kernels/core/exec_context.h"
#include "kernels/gemm/panel_product.h"

namespace lynx::kernels::internal {

// How an operation cuts matrices into work items: by bytes of weights. An item streams for some 20
// us at the bandwidth of one core, and stays in its L2 cache while many rows pass.
inline constexpr int64_t kItemBytes = 256 << 10;

// Fewer bytes where a matrix is so small that threads would be left without work.
inline int64_t PanelsPerItem(const Matrix& w, const ExecContext& ctx) {
  const int64_t threads = ctx.team == nullptr ? 1 : ctx.team->threads();
  return std::max<int64_t>(
      1, std::min(kItemBytes / PanelBytes(w.in, w.dtype), PanelCount(w.out) / (2 * threads)));
}

inline int64_t Items(const Matrix& w, const ExecContext& ctx) {
  const int64_t per_item = PanelsPerItem(w, ctx);
  return (PanelCount(w.out) + per_item - 1) / per_item;
}

// Activations as PanelProductArgs wants them.
struct Activations {
  const void* data = nullptr;
  DType dtype = DType::kF32;
  int64_t rows = 0;
  int64_t stride = 0;
};

// Multiplies all rows of x with the panels of item `item` of w, and calls
// use(first_row, rows, panel, product) with product[r * kPanelRows + o] for each block of at most
// kProductRows rows and each panel.
template <typename Use>
void RunItem(const ExecContext& ctx, const Activations& x, const Matrix& w, int64_t item, Use use) {
  const int64_t panel_bytes = PanelBytes(w.in, w.dtype);
  const int64_t per_item = PanelsPerItem(w, ctx);
  const int64_t begin = item * per_item;
  const int64_t end = std::min(PanelCount(w.out), begin + per_item);
  const auto product = PanelProductFor(ctx.isa, x.dtype, w.dtype);
  const auto* matrix_end = static_cast<const std::byte*>(w.data) + PanelCount(w.out) * panel_bytes;
  alignas(64) float out[kProductRows * kPanelRows];
  for (int64_t row = 0; row < x.rows; row += kProductRows) {
    const int64_t rows = std::min(kProductRows, x.rows - row);
    for (int64_t panel = begin; panel < end; ++panel) {
      const auto* weights = static_cast<const std::byte*>(w.data) + panel * panel_bytes;
      product({.x = static_cast<const std::byte*>(x.data) +
                    row * x.stride * static_cast<int64_t>(SizeOf(x.dtype)),
               .panel = weights,
               // Later blocks of rows find all panels of the item in cache.
               .stream_end = row == 0 ? matrix_end : nullptr,
               .out = out,
               .rows = rows,
               .in = w.in,
               .x_stride = x.stride,
               .x_dtype = x.dtype,
               .panel_dtype = w.dtype});
      use(row, rows, panel, static_cast<const float*>(out));
    }
  }
  if (ctx.streamed_bytes != nullptr) {
    ctx.streamed_bytes->fetch_add((end - begin) * panel_bytes, std::memory_order_relaxed);
  }
}

}  // namespace lynx::kernels::internal
