#include "kernels/kv/kv_write.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "kernels/kv/kv_write_backends.h"

namespace lynx::kernels {
namespace {

constexpr int64_t kElementsPerItem = 16384;  // About 2 us: below that a hand-over costs more.

absl::Status Validate(const KvWriteArgs& args) {
  if (args.rows < 0 || args.kv_heads <= 0 || args.head_dim <= 0 || args.block_stride_bytes <= 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("KvWrite: rows ", args.rows, ", kv_heads ", args.kv_heads, ", head_dim ",
                     args.head_dim, ", block_stride_bytes ", args.block_stride_bytes));
  }
  if (args.kv_dtype == DType::kF16) {
    return absl::InvalidArgumentError("KvWrite: KV must be f32 or bf16");
  }
  for (int64_t r = 0; r < args.rows; ++r) {
    const KvSlot& slot = args.slots[r];
    if (slot.block < 0 || slot.offset < 0 || slot.offset >= kKvBlockTokens) {
      return absl::InvalidArgumentError(
          absl::StrCat("KvWrite: block ", slot.block, ", offset ", slot.offset, " of row ", r));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status KvWrite(const KvWriteArgs& args, const ExecContext& ctx) {
  LYNX_RETURN_IF_ERROR(Validate(args));
  LYNX_RETURN_IF_ERROR(CheckUsable(ctx));
  switch (ctx.backend) {
    case Backend::kReference:
      internal::KvWriteReference(args);
      break;
    case Backend::kCpu: {
      const auto body = internal::KvWriteRowsFor(ctx.isa);
      const int64_t chunk =
          std::max<int64_t>(1, kElementsPerItem / (2 * args.kv_heads * args.head_dim));
      ForEach(ctx, (args.rows + chunk - 1) / chunk,
              [&](int64_t i) { body(args, i * chunk, std::min(args.rows, (i + 1) * chunk)); });
      break;
    }
  }
  return absl::OkStatus();
}

}  // namespace lynx::kernels
