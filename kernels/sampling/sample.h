#pragma once

#include "absl/status/status.h"
#include "kernels/core/exec_context.h"
#include "kernels/sampling/sample_args.h"  // IWYU pragma: export

namespace lynx::kernels {

// On a GPU, in three launches. The token is the one that engine::Sampler draws from the same row:
// weights, their sums and the random number have the same bits. Scratch memory: 4 bytes a logit,
// and 24 for every 1024.
//
//   InvalidArgument    args breaks a bound above.
//   ResourceExhausted  too little scratch memory for one row.
//   Unavailable        ctx is not of a GPU: on CPUs engine::Sampler draws.
//   Internal           as DeviceStatus().
absl::Status SampleOnDevice(const SampleArgs& args, const ExecContext& ctx);

}  // namespace lynx::kernels
