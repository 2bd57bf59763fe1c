#include "kernels/gemm/embed.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace lynx::kernels {
namespace {

absl::Status Validate(const EmbedArgs& args) {
  if (args.rows >= 0 && args.rows < int64_t{1} << 31 && args.w.in > 0 && args.w.out > 0 &&
      args.y_stride >= args.w.in && args.first >= 0) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat("Embed: rows ", args.rows, " of a matrix [",
                                                 args.w.out, ", ", args.w.in, "], y_stride ",
                                                 args.y_stride, ", first ", args.first));
}

void EmbedRow(const EmbedArgs& args, int64_t r) {
  float* const y = args.y + r * args.y_stride;
  const int64_t row = int64_t{args.tokens[r]} - args.first;
  if (row < 0 || row >= args.w.out) {
    std::fill_n(y, args.w.in, 0.0f);
    return;
  }
  UnpackRow(args.w, row, y);
  if (args.scale == 1) return;
  for (int64_t i = 0; i < args.w.in; ++i) y[i] *= args.scale;
}

}  // namespace

absl::Status Embed(const EmbedArgs& args, const ExecContext& ctx) {
  LYNX_RETURN_IF_ERROR(Validate(args));
  LYNX_RETURN_IF_ERROR(CheckUsable(ctx));
  switch (ctx.backend) {
    case Backend::kReference:
    case Backend::kCpu:
      ForEach(ctx, args.rows, [&](int64_t r) { EmbedRow(args, r); });
      break;
    case Backend::kCuda:
      if (args.rows == 0) break;
      return QueueOnDevice("Embed", ctx.device->embed, args, ctx);
  }
  return absl::OkStatus();
}

}  // namespace lynx::kernels
