#include "kernels/kv/kv_write.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "kernels/kv/kv_write_backends.h"

namespace lynx::kernels {
namespace {

constexpr int64_t kElementsPerItem = 16384;  // About 2 us: below that a hand-over costs more.

absl::Status CheckTarget(const char* operation, const KvSlot* slots, int64_t rows, DType kv_dtype,
                         Backend backend) {
  if (kv_dtype == DType::kF16) {
    return absl::InvalidArgumentError(absl::StrCat(operation, ": KV must be f32 or bf16"));
  }
  if (backend == Backend::kCuda) return absl::OkStatus();  // What is on the device cannot be seen.
  for (int64_t r = 0; r < rows; ++r) {
    const KvSlot& slot = slots[r];
    if (slot.block < 0 || slot.offset < 0 || slot.offset >= kKvBlockTokens) {
      return absl::InvalidArgumentError(
          absl::StrCat(operation, ": block ", slot.block, ", offset ", slot.offset, " of row ", r));
    }
  }
  return absl::OkStatus();
}

absl::Status Validate(const KvWriteArgs& args, Backend backend) {
  if (args.rows < 0 || args.kv_heads <= 0 || args.head_dim <= 0 || args.block_stride_bytes <= 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("KvWrite: rows ", args.rows, ", kv_heads ", args.kv_heads, ", head_dim ",
                     args.head_dim, ", block_stride_bytes ", args.block_stride_bytes));
  }
  return CheckTarget("KvWrite", args.slots, args.rows, args.kv_dtype, backend);
}

absl::Status Validate(const LatentWriteArgs& args, Backend backend) {
  if (args.rows < 0 || args.width <= 0 || args.x_stride < args.width ||
      args.block_stride_bytes <= 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("LatentWrite: rows ", args.rows, ", width ", args.width, ", x_stride ",
                     args.x_stride, ", block_stride_bytes ", args.block_stride_bytes));
  }
  return CheckTarget("LatentWrite", args.slots, args.rows, args.kv_dtype, backend);
}

template <typename Args>
using RowsBody = void (*)(const Args& args, int64_t begin, int64_t end);

template <typename Args>
absl::Status Run(const Args& args, int64_t row_elements, void (*reference)(const Args&),
                 RowsBody<Args> body, const char* operation,
                 int (*DeviceKernels::*on_device)(const Args&, const DeviceQueue&),
                 const ExecContext& ctx) {
  LYNX_RETURN_IF_ERROR(Validate(args, ctx.backend));
  LYNX_RETURN_IF_ERROR(CheckUsable(ctx));
  switch (ctx.backend) {
    case Backend::kReference:
      reference(args);
      break;
    case Backend::kCpu: {
      const int64_t chunk = std::max<int64_t>(1, kElementsPerItem / row_elements);
      ForEach(ctx, (args.rows + chunk - 1) / chunk,
              [&](int64_t i) { body(args, i * chunk, std::min(args.rows, (i + 1) * chunk)); });
      break;
    }
    case Backend::kCuda:
      if (args.rows == 0) break;
      return QueueOnDevice(operation, ctx.device->*on_device, args, ctx);
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status KvWrite(const KvWriteArgs& args, const ExecContext& ctx) {
  return Run(args, 2 * args.kv_heads * args.head_dim, internal::KvWriteReference,
             internal::KvWriteRowsFor(ctx.isa), "KvWrite", &DeviceKernels::kv_write, ctx);
}

absl::Status LatentWrite(const LatentWriteArgs& args, const ExecContext& ctx) {
  return Run(args, args.width, internal::LatentWriteReference,
             internal::LatentWriteRowsFor(ctx.isa), "LatentWrite", &DeviceKernels::latent_write,
             ctx);
}

}  // namespace lynx::kernels
