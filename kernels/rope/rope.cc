#include "kernels/rope/rope.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "kernels/rope/rope_backends.h"

namespace lynx::kernels {
namespace {

constexpr int64_t kElementsPerItem = 16384;  // About 2 us: below that a hand-over costs more.

absl::Status Validate(const RopeArgs& args, Backend backend) {
  if (args.rows < 0 || args.heads <= 0 || args.rotary_dim <= 0 || args.rotary_dim % 2 != 0 ||
      args.head_stride < args.rotary_dim ||
      args.x_stride < (args.heads - 1) * args.head_stride + args.rotary_dim ||
      args.table_positions <= 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("Rope: rows ", args.rows, ", heads ", args.heads, ", rotary_dim ",
                     args.rotary_dim, ", head_stride ", args.head_stride, ", x_stride ",
                     args.x_stride, ", table_positions ", args.table_positions));
  }
  if (backend == Backend::kCuda) return absl::OkStatus();  // What is on the device cannot be seen.
  for (int64_t r = 0; r < args.rows; ++r) {
    if (args.positions[r] < 0 || args.positions[r] >= args.table_positions) {
      return absl::InvalidArgumentError(absl::StrCat("Rope: position ", args.positions[r],
                                                     " of row ", r, " is not in [0, ",
                                                     args.table_positions, ")"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status Rope(const RopeArgs& args, const ExecContext& ctx) {
  LYNX_RETURN_IF_ERROR(Validate(args, ctx.backend));
  LYNX_RETURN_IF_ERROR(CheckUsable(ctx));
  switch (ctx.backend) {
    case Backend::kReference:
      internal::RopeReference(args);
      break;
    case Backend::kCpu: {
      const auto body = internal::RopeRowsFor(ctx.isa);
      const int64_t chunk = std::max<int64_t>(1, kElementsPerItem / (args.heads * args.rotary_dim));
      ForEach(ctx, (args.rows + chunk - 1) / chunk,
              [&](int64_t i) { body(args, i * chunk, std::min(args.rows, (i + 1) * chunk)); });
      break;
    }
    case Backend::kCuda:
      if (args.rows == 0) break;
      return QueueOnDevice("Rope", ctx.device->rope, args, ctx);
  }
  return absl::OkStatus();
}

}  // namespace lynx::kernels
