#include "kernels/cast/cast.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "kernels/cast/cast_backends.h"

namespace lynx::kernels {
namespace {

constexpr int64_t kElementsPerItem = 16384;  // About 2 us: below that a hand-over costs more.

constexpr int64_t kMaxDeviceRow = int64_t{65535} * 256;  // Elements: what a grid has.

absl::Status Validate(const CastArgs& args) {
  if (args.rows < 0 || args.heads <= 0 || args.width <= 0 || args.y_width < args.width ||
      args.x_head_stride < args.width || args.y_head_stride < args.y_width ||
      args.x_stride < (args.heads - 1) * args.x_head_stride + args.width ||
      args.y_stride < (args.heads - 1) * args.y_head_stride + args.y_width) {
    return absl::InvalidArgumentError(absl::StrCat(
        "Cast: rows ", args.rows, ", heads ", args.heads, ", width ", args.width, ", y_width ",
        args.y_width, ", x_head_stride ", args.x_head_stride, ", x_stride ", args.x_stride,
        ", y_head_stride ", args.y_head_stride, ", y_stride ", args.y_stride));
  }
  if (args.y_dtype == DType::kF16) {
    return absl::InvalidArgumentError("Cast: y must be f32 or bf16");
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status Cast(const CastArgs& args, const ExecContext& ctx) {
  LYNX_RETURN_IF_ERROR(Validate(args));
  LYNX_RETURN_IF_ERROR(CheckUsable(ctx));
  switch (ctx.backend) {
    case Backend::kReference:
      internal::CastReference(args);
      break;
    case Backend::kCpu: {
      const auto body = internal::CastRowsFor(ctx.isa);
      const int64_t chunk = std::max<int64_t>(1, kElementsPerItem / (args.heads * args.y_width));
      ForEach(ctx, (args.rows + chunk - 1) / chunk,
              [&](int64_t i) { body(args, i * chunk, std::min(args.rows, (i + 1) * chunk)); });
      break;
    }
    case Backend::kCuda:
      if (args.rows == 0) break;
      if (args.rows >= int64_t{1} << 31 || args.heads * args.y_width > kMaxDeviceRow) {
        return absl::InvalidArgumentError(
            absl::StrCat("Cast on a GPU: ", args.rows, " rows of ", args.heads, " heads"));
      }
      return QueueOnDevice("Cast", ctx.device->cast, args, ctx);
  }
  return absl::OkStatus();
}

}  // namespace lynx::kernels
