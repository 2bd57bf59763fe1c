#include <algorithm>

#include "common/moe/gate_math.h"
#include "common/moe/internal/row_ops.h"
#include "common/moe/internal/stages.h"

namespace lynx::moe::internal {

void SumMass(const RouterInput& input, Workspace& workspace) {
  constexpr double kFine = static_cast<double>(uint64_t{1} << 40);
  constexpr double kUnit = static_cast<double>(uint64_t{1} << 24);
  const size_t experts = workspace.experts;
  float* exps = workspace.exps.data();
  uint64_t* column_mass = workspace.column_mass.data();
  std::fill_n(column_mass, experts, uint64_t{0});
  for (int32_t row : workspace.voters) {
    const float* logits = LogitsOf(input, row);
    GateExps(logits, experts, *std::max_element(logits, logits + experts), exps);
    int64_t total = 0;  // Signed: what a processor turns numbers into in one step.
    for (size_t e = 0; e < experts; ++e) {
      total += static_cast<int64_t>(static_cast<double>(exps[e]) * kFine + 0.5);
    }
    const double share = kUnit * kFine / static_cast<double>(total);
    uint32_t* mass = workspace.MassOf(row).data();
    for (size_t e = 0; e < experts; ++e) {
      mass[e] =
          static_cast<uint32_t>(static_cast<int32_t>(static_cast<double>(exps[e]) * share + 0.5));
    }
    for (size_t e = 0; e < experts; ++e) column_mass[e] += mass[e];
  }
}

std::span<const int32_t> OrderByMass(Workspace& workspace) {
  for (size_t e = 0; e < workspace.experts; ++e) {
    workspace.liking[e] = (workspace.column_mass[e] << kLikingShift) + NobodysLiking(e);
  }
  BestRowOps().order(workspace.liking.data(), workspace.experts, workspace.order.data());
  return std::span(workspace.order).first(workspace.experts);
}

}  // namespace lynx::moe::internal
