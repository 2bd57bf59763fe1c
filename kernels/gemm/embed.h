#pragma once

#include "absl/status/status.h"
#include "kernels/core/exec_context.h"
#include "kernels/gemm/embed_args.h"  // IWYU pragma: export

namespace lynx::kernels {

// All back ends agree bit for bit. Memory between rows of y is not written.
//
//   InvalidArgument  args breaks a bound above; y is untouched.
//   Unavailable      this machine cannot run ctx.
absl::Status Embed(const EmbedArgs& args, const ExecContext& ctx);

}  // namespace lynx::kernels
