#pragma once

#include "absl/status/status.h"
#include "kernels/core/exec_context.h"
#include "kernels/kv/kv_copy_args.h"  // IWYU pragma: export

namespace lynx::kernels {

// Gather: from the blocks to `packed`. Scatter: from `packed` to the blocks, which are distinct;
// nothing else of them is written. On GPUs `packed` may be pinned memory of the host, which the
// device writes and reads where it is.
//
//   InvalidArgument  args breaks a bound; nothing is written.
//   Unavailable      this machine cannot run ctx.
absl::Status KvGather(const KvCopyArgs& args, const ExecContext& ctx);
absl::Status KvScatter(const KvCopyArgs& args, const ExecContext& ctx);

}  // namespace lynx::kernels
