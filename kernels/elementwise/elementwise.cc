#include "kernels/elementwise/elementwise.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace lynx::kernels {
namespace {

constexpr int64_t kElementsPerItem = 16384;  // About 2 us: below that a hand-over costs more.

absl::Status CheckRows(std::string_view operation, int64_t rows, int64_t width, int64_t x_stride,
                       int64_t y_stride) {
  if (rows >= 0 && rows < int64_t{1} << 31 && width > 0 && x_stride >= width && y_stride >= width) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(std::string(operation), ": rows ", rows,
                                                 ", width ", width, ", x_stride ", x_stride,
                                                 ", y_stride ", y_stride));
}

absl::Status CheckPositive(std::string_view operation, std::string_view name, float value) {
  if (value > 0) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(std::string(operation), ": ", std::string(name), " ", value));
}

// These are their own reference.
template <typename Args, typename Row>
absl::Status Run(std::string_view operation, const Args& args, int64_t width, const Row& row,
                 int (*DeviceKernels::*on_device)(const Args&, const DeviceQueue&),
                 const ExecContext& ctx) {
  LYNX_RETURN_IF_ERROR(CheckUsable(ctx));
  if (args.rows == 0) return absl::OkStatus();
  if (ctx.backend == Backend::kCuda) {
    return QueueOnDevice(operation, ctx.device->*on_device, args, ctx);
  }
  const int64_t chunk = std::max<int64_t>(1, kElementsPerItem / width);
  ForEach(ctx, (args.rows + chunk - 1) / chunk, [&](int64_t i) {
    for (int64_t r = i * chunk; r < std::min(args.rows, (i + 1) * chunk); ++r) row(r);
  });
  return absl::OkStatus();
}

}  // namespace

absl::Status Clip(const ClipArgs& args, const ExecContext& ctx) {
  LYNX_RETURN_IF_ERROR(CheckRows("Clip", args.rows, args.width, args.x_stride, args.x_stride));
  LYNX_RETURN_IF_ERROR(CheckPositive("Clip", "limit", args.limit));
  const auto row = [&](int64_t r) {
    float* const x = args.x + r * args.x_stride;
    for (int64_t c = 0; c < args.width; ++c) x[c] = std::clamp(x[c], -args.limit, args.limit);
  };
  return Run("Clip", args, args.width, row, &DeviceKernels::clip, ctx);
}

absl::Status Grow(const GrowArgs& args, const ExecContext& ctx) {
  LYNX_RETURN_IF_ERROR(CheckRows("Grow", args.rows, args.width, args.x_stride, args.x_stride));
  LYNX_RETURN_IF_ERROR(CheckPositive("Grow", "floor", args.floor));
  const auto row = [&](int64_t r) {
    float* const x = args.x + r * args.x_stride;
    const auto reached = static_cast<float>(args.positions[r] + 1) / args.floor;
    const float growth = 1 + args.growth * std::log1p(std::floor(reached));
    for (int64_t c = 0; c < args.width; ++c) x[c] *= growth;
  };
  return Run("Grow", args, args.width, row, &DeviceKernels::grow, ctx);
}

absl::Status GateWeights(const GateWeightsArgs& args, const ExecContext& ctx) {
  LYNX_RETURN_IF_ERROR(CheckRows("GateWeights", args.rows, 1, 1, 1));
  const auto row = [&](int64_t r) {
    args.weights[r] = args.scale / (1 + std::exp(-args.weights[r]));
  };
  return Run("GateWeights", args, 1, row, &DeviceKernels::gate_weights, ctx);
}

absl::Status GatherRows(const GatherRowsArgs& args, const ExecContext& ctx) {
  LYNX_RETURN_IF_ERROR(
      CheckRows("GatherRows", args.rows, args.width, args.x_stride, args.y_stride));
  const auto row = [&](int64_t r) {
    std::copy_n(args.x + args.numbers[r] * args.x_stride, args.width, args.y + r * args.y_stride);
  };
  return Run("GatherRows", args, args.width, row, &DeviceKernels::gather_rows, ctx);
}

}  // namespace lynx::kernels
