#include "kernels/norm/rms_norm.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "kernels/norm/rms_norm_backends.h"

namespace lynx::kernels {
namespace {

constexpr int64_t kElementsPerItem = 16384;  // About 2 us: below that a hand-over costs more.

absl::Status Validate(const RmsNormArgs& args) {
  if (args.rows < 0 || args.rows >= int64_t{1} << 31 || args.hidden <= 0 ||
      args.x_stride < args.hidden || args.y_stride < args.hidden) {
    return absl::InvalidArgumentError(absl::StrCat("RmsNorm: rows ", args.rows, ", hidden ",
                                                   args.hidden, ", x_stride ", args.x_stride,
                                                   ", y_stride ", args.y_stride));
  }
  if (!(args.epsilon > 0)) {
    return absl::InvalidArgumentError(absl::StrCat("RmsNorm: epsilon ", args.epsilon));
  }
  if (args.y_dtype == DType::kF16) {
    return absl::InvalidArgumentError("RmsNorm: y must be f32 or bf16");
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status RmsNorm(const RmsNormArgs& args, const ExecContext& ctx) {
  LYNX_RETURN_IF_ERROR(Validate(args));
  LYNX_RETURN_IF_ERROR(CheckUsable(ctx));
  switch (ctx.backend) {
    case Backend::kReference:
      internal::RmsNormReference(args);
      break;
    case Backend::kCpu: {
      const auto body = internal::RmsNormRowsFor(ctx.isa);
      const int64_t chunk = std::max<int64_t>(1, kElementsPerItem / args.hidden);
      ForEach(ctx, (args.rows + chunk - 1) / chunk,
              [&](int64_t i) { body(args, i * chunk, std::min(args.rows, (i + 1) * chunk)); });
      break;
    }
    case Backend::kCuda:
      if (args.rows == 0) break;
      return QueueOnDevice("RmsNorm", ctx.device->rms_norm, args, ctx);
  }
  return absl::OkStatus();
}

}  // namespace lynx::kernels
