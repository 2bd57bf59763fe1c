#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/dtype.h"
#include "kernels/core/isa.h"
#include "kernels/core/thread_team.h"

namespace lynx::cli {

// Measures how fast this machine multiplies right now: the node's own matrix product on weights
// that stay in the caches. The roof of what is bound by arithmetic, for as many rows as a step has:
// with few, registers and caches bound it, which is no more avoidable.
//
// One thread; the product runs on `team`, which outlives this.
class ArithmeticRate {
 public:
  // Weights are bf16; activations of `dtype`, kF32 or kBf16. `isa` is that of what is measured.
  ArithmeticRate(DType dtype, kernels::ThreadTeam& team, kernels::Isa isa = kernels::BestIsa());

  kernels::Isa isa() const { return isa_; }

  // Operations per second at `rows` > 0 rows, best of some passes. Fails as kernels::Gemm does.
  absl::StatusOr<double> Measure(int64_t rows);

 private:
  const DType dtype_;
  kernels::ThreadTeam& team_;
  const kernels::Isa isa_;
  const int64_t out_;
  std::vector<uint8_t> memory_;
  std::span<uint8_t> weights_;  // Within memory_, aligned.
};

}  // namespace lynx::cli
