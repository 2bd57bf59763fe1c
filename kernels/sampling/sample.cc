#include "kernels/sampling/sample.h"

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace lynx::kernels {

absl::Status SampleOnDevice(const SampleArgs& args, const ExecContext& ctx) {
  if (args.row_count < 0 || args.row_count > 65535 || args.vocab <= 0 ||
      args.vocab > kMaxSampleVocab || args.stride < args.vocab) {
    return absl::InvalidArgumentError(absl::StrCat(
        "SampleOnDevice: rows ", args.row_count, ", vocab ", args.vocab, ", stride ", args.stride));
  }
  LYNX_RETURN_IF_ERROR(CheckUsable(ctx));
  if (ctx.backend != Backend::kCuda) {
    return absl::UnavailableError("SampleOnDevice: a sampler of common/engine serves CPUs");
  }
  if (args.row_count == 0) return absl::OkStatus();
  return QueueOnDevice("SampleOnDevice", ctx.device->sample, args, ctx);
}

}  // namespace lynx::kernels
