#include "kernels/gemm/gemm.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "kernels/gemm/gemm_backends.h"

namespace lynx::kernels {
namespace {

// Work of one item in multiply-adds: about 3 us of one core, and few enough columns that their
// weights stay in its L2 cache while the rows pass by.
constexpr int64_t kMultiplyAddsPerItem = 131072;

absl::Status Validate(const GemmArgs& args) {
  if (args.rows < 0 || args.rows >= int64_t{1} << 31 || args.in <= 0 || args.out <= 0 ||
      args.out >= int64_t{1} << 28 || args.x_stride < args.in || args.y_stride < args.out) {
    return absl::InvalidArgumentError(absl::StrCat("Gemm: rows ", args.rows, ", in ", args.in,
                                                   ", out ", args.out, ", x_stride ", args.x_stride,
                                                   ", y_stride ", args.y_stride));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status Gemm(const GemmArgs& args, const ExecContext& ctx) {
  LYNX_RETURN_IF_ERROR(Validate(args));
  LYNX_RETURN_IF_ERROR(CheckUsable(ctx));
  if (args.rows == 0) return absl::OkStatus();
  switch (ctx.backend) {
    case Backend::kReference:
      internal::GemmReference(args);
      break;
    case Backend::kCpu: {
      const auto body = internal::GemmColumnsFor(ctx.isa);
      const int64_t per_column = args.in * std::min<int64_t>(args.rows, 8);
      const int64_t chunk = std::max<int64_t>(16, kMultiplyAddsPerItem / per_column / 16 * 16);
      ForEach(ctx, (args.out + chunk - 1) / chunk,
              [&](int64_t i) { body(args, i * chunk, std::min(args.out, (i + 1) * chunk)); });
      break;
    }
  }
  return absl::OkStatus();
}

}  // namespace lynx::kernels
