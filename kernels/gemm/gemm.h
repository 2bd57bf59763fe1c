#pragma once

#include <span>

#include "absl/status/status.h"
#include "kernels/core/exec_context.h"
#include "kernels/gemm/gemm_args.h"  // IWYU pragma: export

namespace lynx::kernels {

// A good distance in elements between rows of activations of `width` elements: room for the zeros
// that follow bf16 rows, a multiple of 64 bytes, not one of 4 KiB.
int64_t ActivationStride(int64_t width, DType dtype);

// y overlaps neither x nor w. Memory between rows of y is not written. Each weight is read from
// memory once per call, however many rows there are.
//
// Numerics: each sum is within ReductionTolerance(w.in) * sum of |x * w| of kReference. A row's
// bits depend on that row and w alone. NaN or Inf in a row stays in that row. bf16 by bf16 on
// kAvx512Bf16 and kAmx takes denormal numbers for zeros.
//
// On GPUs: x of bf16 begins at a multiple of 16 bytes, and so do its rows. Of bf16 rows and weights
// up to 64 rows read each weight once, more rows once for 128 of them; of other types, 8 at a time.
//
//   InvalidArgument  args breaks a bound above; y is untouched.
//   Unavailable      this machine cannot run ctx.
absl::Status Gemm(const GemmArgs& args, const ExecContext& ctx);

// Several products in one go, at most kMaxGemms: their threads wait for one another once. None
// writes what another touches. Nothing is computed if one is refused.
inline constexpr size_t kMaxGemms = 256;
absl::Status Gemm(std::span<const GemmArgs> products, const ExecContext& ctx);

}  // namespace lynx::kernels
