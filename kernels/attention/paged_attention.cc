#include "kernels/attention/paged_attention.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "kernels/attention/paged_attention_backends.h"

namespace lynx::kernels {
namespace {

constexpr int64_t kRowsPerItem = 8;

absl::Status Validate(const PagedAttentionArgs& args) {
  const int64_t width = args.heads * args.head_dim;
  if (args.row_count < 0 || args.kv_heads <= 0 || args.heads <= 0 ||
      args.heads % args.kv_heads != 0 || args.head_dim <= 0 || args.head_dim > kMaxHeadDim ||
      args.q_stride < width || args.y_stride < width || args.block_stride_bytes <= 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "PagedAttention: rows ", args.row_count, ", heads ", args.heads, ", kv_heads ",
        args.kv_heads, ", head_dim ", args.head_dim, ", q_stride ", args.q_stride, ", y_stride ",
        args.y_stride, ", block_stride_bytes ", args.block_stride_bytes));
  }
  if (args.kv_dtype == DType::kF16) {
    return absl::InvalidArgumentError("PagedAttention: KV must be f32 or bf16");
  }
  for (int64_t r = 0; r < args.row_count; ++r) {
    if (args.rows[r].position < 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("PagedAttention: position ", args.rows[r].position, " of row ", r));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status PagedAttention(const PagedAttentionArgs& args, const ExecContext& ctx) {
  LYNX_RETURN_IF_ERROR(Validate(args));
  LYNX_RETURN_IF_ERROR(CheckUsable(ctx));
  switch (ctx.backend) {
    case Backend::kReference:
      internal::PagedAttentionReference(args);
      break;
    case Backend::kCpu: {
      const auto body = internal::PagedAttentionRowsFor(ctx.isa);
      const int64_t chunks = (args.row_count + kRowsPerItem - 1) / kRowsPerItem;
      // Later rows of a prompt attend to more: they go first, so that no thread ends alone on one.
      ForEach(ctx, chunks * args.kv_heads, [&](int64_t i) {
        const int64_t chunk = chunks - 1 - i / args.kv_heads;
        body(args, chunk * kRowsPerItem, std::min(args.row_count, (chunk + 1) * kRowsPerItem),
             i % args.kv_heads);
      });
      break;
    }
  }
  return absl::OkStatus();
}

}  // namespace lynx::kernels
