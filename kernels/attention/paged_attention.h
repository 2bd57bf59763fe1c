#pragma once

#include "absl/status/status.h"
#include "kernels/attention/attention_workspace.h"   // IWYU pragma: export
#include "kernels/attention/paged_attention_args.h"  // IWYU pragma: export
#include "kernels/core/exec_context.h"

namespace lynx::kernels {

// y overlaps nothing else, the workspace neither. KV after a row's position never counts, so it may
// hold anything.
//
// Numerics: scores, softmax and sums in float32, in splits of 256 tokens at fixed positions which
// are merged in order. A row's bits depend on its q, its position and the values of its KV: not on
// block ids, on other rows, on threads, or on whether rows are prompt or generated tokens. For
// unit-variance inputs kCpu agrees with kReference to within 1e-5 of the largest |V|; with bf16
// compute to within 1e-2, as y is rounded, and where KV is bf16, too, and the instruction set has
// products of such numbers, so are q and the softmax weights. NaN or Inf in a row or its KV stays
// with the rows that attend to it.
//
// On a GPU: in its bits as on CPUs; of bf16 in and out, q and weights are rounded where head_dim is
// a multiple of 64. The scratch memory holds the splits of as many rows as it has room for, the
// workspace is not used.
//
//   InvalidArgument    args breaks a bound above; y is untouched.
//   ResourceExhausted  on a GPU: the scratch memory has no room for one row.
//   Unavailable        this machine cannot run ctx.
absl::Status PagedAttention(const PagedAttentionArgs& args, AttentionWorkspace& workspace,
                            const ExecContext& ctx);

}  // namespace lynx::kernels
