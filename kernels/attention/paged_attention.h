#pragma once

#include "absl/status/status.h"
#include "kernels/attention/paged_attention_args.h"  // IWYU pragma: export
#include "kernels/core/exec_context.h"

namespace lynx::kernels {

// y overlaps nothing else. KV after a row's position is never read, so it may hold anything.
//
// Numerics: scores, softmax and sums in float32, walked block by block in the order of absolute
// positions with a running maximum. A row's bits depend on its q, its position and the values of
// its KV: not on block ids, on other rows, or on whether those are prompt or generated tokens.
// Without rounding kCpu agrees with kReference to within 1e-5 of the largest |V| for unit-variance
// inputs. NaN or Inf in a row or its KV stays with the rows that attend to it.
//
//   InvalidArgument  args breaks a bound above; y is untouched.
//   Unavailable      this machine cannot run ctx.
absl::Status PagedAttention(const PagedAttentionArgs& args, const ExecContext& ctx);

}  // namespace lynx::kernels
