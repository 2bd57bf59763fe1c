#pragma once

#include "absl/status/status.h"
#include "kernels/core/exec_context.h"
#include "kernels/kv/kv_write_args.h"  // IWYU pragma: export

namespace lynx::kernels {

// Write nothing but the named slots. All back ends agree bit for bit (NaN aside, which stays NaN).
//
//   InvalidArgument  args breaks a bound above; nothing is written.
//   Unavailable      this machine cannot run ctx.
absl::Status KvWrite(const KvWriteArgs& args, const ExecContext& ctx);
absl::Status LatentWrite(const LatentWriteArgs& args, const ExecContext& ctx);

}  // namespace lynx::kernels
