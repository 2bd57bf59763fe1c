#include "kernels/gemm/gemm.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "kernels/gemm/gemm_ref.h"
#include "kernels/gemm/panel_items.h"

namespace lynx::kernels {
namespace {

absl::Status Validate(const GemmArgs& args) {
  const int64_t in = args.w.in;
  if (args.rows < 0 || args.rows >= int64_t{1} << 31 || in <= 0 || args.w.out <= 0 ||
      args.w.out >= int64_t{1} << 28 || args.x_dtype == DType::kF16 ||
      args.x_stride < PaddedDepth(in, args.x_dtype) || args.y_stride < args.w.out) {
    return absl::InvalidArgumentError(absl::StrCat(
        "Gemm: rows ", args.rows, ", in ", in, ", out ", args.w.out, ", x_stride ", args.x_stride,
        " of ", std::string(Name(args.x_dtype)), ", y_stride ", args.y_stride));
  }
  return absl::OkStatus();
}

// What kernels for GPUs ask for beyond: they count in 32 bits and load 16 bytes at a time.
absl::Status ValidateOnDevice(const GemmArgs& args) {
  const bool aligned = reinterpret_cast<uintptr_t>(args.x) % 16 == 0 && args.x_stride % 8 == 0;
  if (args.w.in < int64_t{1} << 28 && (args.x_dtype == DType::kF32 || aligned)) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("Gemm on a GPU: x of bf16 and its rows begin at multiples of 16 bytes; in ",
                   args.w.in, ", x_stride ", args.x_stride));
}

// One block of y, from column `first` on: rows of a product, of which `columns` count.
void Store(const GemmArgs& args, const float* product, int64_t row, int64_t rows, int64_t first,
           int64_t columns) {
  float* y = args.y + row * args.y_stride + first;
  for (int64_t r = 0; r < rows; ++r, product += kPanelRows, y += args.y_stride) {
    if (args.scale != 1 || args.bias != nullptr) {
      for (int64_t o = 0; o < columns; ++o) {
        const float bias = args.bias == nullptr ? 0 : args.bias[first + o];
        y[o] = (args.accumulate ? y[o] : 0) + (bias + args.scale * product[o]);
      }
    } else if (args.accumulate) {
      for (int64_t o = 0; o < columns; ++o) y[o] += product[o];
    } else {
      std::copy_n(product, columns, y);
    }
  }
}

void RunItem(const GemmArgs& args, int64_t item, const ExecContext& ctx) {
  const internal::Activations x{
      .data = args.x, .dtype = args.x_dtype, .rows = args.rows, .stride = args.x_stride};
  internal::RunItem(
      ctx, x, args.w, item, [&](int64_t row, int64_t rows, int64_t panel, const float* product) {
        const int64_t first = panel * kPanelRows;
        Store(args, product, row, rows, first, std::min(kPanelRows, args.w.out - first));
      });
}

}  // namespace

int64_t ActivationStride(int64_t width, DType dtype) {
  const int64_t stride = ToPanelDepth(width);
  const bool same_page_offset = stride * static_cast<int64_t>(SizeOf(dtype)) % 4096 == 0;
  return same_page_offset ? stride + kPanelDepth : stride;
}

absl::Status Gemm(const GemmArgs& args, const ExecContext& ctx) {
  return Gemm(std::span(&args, 1), ctx);
}

absl::Status Gemm(std::span<const GemmArgs> products, const ExecContext& ctx) {
  if (products.size() > kMaxGemms) {
    return absl::InvalidArgumentError(absl::StrCat("Gemm: ", products.size(), " products"));
  }
  for (const GemmArgs& args : products) LYNX_RETURN_IF_ERROR(Validate(args));
  LYNX_RETURN_IF_ERROR(CheckUsable(ctx));
  switch (ctx.backend) {
    case Backend::kReference:
      for (const GemmArgs& args : products) internal::GemmReference(args);
      break;
    case Backend::kCpu: {
      int64_t ends[kMaxGemms];  // Of each product's items among those of all.
      int64_t total = 0;
      for (size_t i = 0; i < products.size(); ++i) {
        ends[i] = total += products[i].rows == 0 ? 0 : internal::Items(products[i].w, ctx);
      }
      ForEach(ctx, total, [&](int64_t item) {
        const auto i = std::upper_bound(ends, ends + products.size(), item) - ends;
        RunItem(products[static_cast<size_t>(i)], item - (i == 0 ? 0 : ends[i - 1]), ctx);
      });
      break;
    }
    case Backend::kCuda:
      for (const GemmArgs& args : products) LYNX_RETURN_IF_ERROR(ValidateOnDevice(args));
      LYNX_RETURN_IF_ERROR(
          QueueOnDevice("Gemm", ctx.device->gemm,
                        GemmProducts{.products = products.data(), .count = products.size()}, ctx));
      for (const GemmArgs& args : products) {
        if (ctx.streamed_bytes == nullptr || args.rows == 0) continue;
        ctx.streamed_bytes->fetch_add(PackedBytes(args.w.out, args.w.in, args.w.dtype),
                                      std::memory_order_relaxed);
      }
      break;
  }
  return absl::OkStatus();
}

}  // namespace lynx::kernels
