#pragma once

#include "absl/status/status.h"
#include "kernels/attention/attention_workspace.h"    // IWYU pragma: export
#include "kernels/attention/latent_attention_args.h"  // IWYU pragma: export
#include "kernels/core/exec_context.h"

namespace lynx::kernels {

// y overlaps nothing else; memory between its heads is not written. KV after a row's position never
// counts, so it may hold anything. Every row takes this form, of a prompt or generated, so that its
// bits do not tell which it was.
//
// Numerics: as PagedAttention, to the same bounds.
//
// On a GPU: in its bits as on CPUs; of bf16 in and out, q and weights are rounded where
// latent_dim is a multiple of 64 and rope_dim of 32. The scratch
// memory holds the splits of as many rows as it has room for, the workspace is not used.
//
//   InvalidArgument    args breaks a bound above; y is untouched.
//   ResourceExhausted  on a GPU: the scratch memory has no room for one row.
//   Unavailable        this machine cannot run ctx.
absl::Status LatentAttention(const LatentAttentionArgs& args, AttentionWorkspace& workspace,
                             const ExecContext& ctx);

}  // namespace lynx::kernels
