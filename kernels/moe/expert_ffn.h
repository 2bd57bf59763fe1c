#pragma once

#include <vector>

#include "absl/status/status.h"
#include "kernels/core/exec_context.h"
#include "kernels/gemm/panel_items.h"
#include "kernels/moe/expert_ffn_args.h"  // IWYU pragma: export

namespace lynx::kernels {

// Memory that ExpertFfn works in, made once for the largest call. One call at a time.
class ExpertFfnWorkspace {
 public:
  // Sizes > 0. x_dtype is the widest of the calls'. `on_device`: of calls on a GPU alone, for which
  // it has no memory.
  ExpertFfnWorkspace(int64_t max_rows, int64_t max_top_k, int64_t max_experts, int64_t hidden,
                     int64_t intermediate, DType x_dtype, bool on_device = false);

  // Which rows go through which expert: entry i of expert e, offsets[e] <= i < offsets[e + 1], is
  // (row * top_k + rank) order[i].
  std::vector<int32_t> offsets;
  std::vector<int32_t> order;
  std::vector<int32_t> active;                  // Experts with a row, ascending.
  std::vector<internal::Activations> expert_x;  // [active]: their rows of x.

  // A cache line each.
  struct alignas(64) Line {
    std::byte bytes[64];
  };
  std::vector<Line> gathered;  // [entry, hidden] of x_dtype: x where an expert's rows are scattered
  std::vector<Line> inner;     // [entry, intermediate] of x_dtype
  std::vector<Line> outer;     // [row * top_k + rank, hidden] of float32

  bool Fits(const ExpertFfnArgs& args) const;

 private:
  int64_t max_assignments_;
  int64_t max_experts_;
  int64_t hidden_;
  int64_t intermediate_;
  DType x_dtype_;
};

// y overlaps neither x nor the workspace. The weights of every active expert are read from memory
// once per call, however many rows use it.
//
// Numerics: float32 sums as in Gemm; ranks are added in the order j = 0, 1, ... A row's bits depend
// on that row, its ids and weights alone. NaN or Inf in a row stays in that row.
//
// On GPUs: at most 1024 experts, all weights of args.device_weights; x of bf16 begins at a multiple
// of 16 bytes, and so do its rows. Of the workspace nothing is used but
// its size; the scratch memory needs at least
//
//   rows * top_k * (intermediate rounded up to 32 in x_dtype + hidden in float32)
//
// and some 4 KiB beside 16 bytes an expert and 4 an assignment.
//
//   InvalidArgument    args breaks a bound above or exceeds the workspace; y is untouched.
//   ResourceExhausted  on a GPU: the scratch memory does not do.
//   Unimplemented      on a GPU: sums.
//   Unavailable        this machine cannot run ctx.
absl::Status ExpertFfn(const ExpertFfnArgs& args, ExpertFfnWorkspace& workspace,
                       const ExecContext& ctx);

}  // namespace lynx::kernels
