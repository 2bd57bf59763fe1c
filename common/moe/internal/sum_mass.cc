#include <algorithm>

#include "common/moe/gate_math.h"
#include "common/moe/internal/stages.h"

namespace lynx::moe::internal {
namespace {

// Rounds down. By way of a signed number, which is one instruction.
uint64_t Whole(double value) { return static_cast<uint64_t>(static_cast<int64_t>(value)); }

}  // namespace

void SumMass(const RouterInput& input, Workspace& workspace) {
  constexpr double kFine = static_cast<double>(uint64_t{1} << 40);
  constexpr double kUnit = static_cast<double>(uint64_t{1} << 24);
  const size_t experts = workspace.experts;
  float* exps = workspace.exps.data();
  std::fill_n(workspace.column_mass.begin(), experts, uint64_t{0});
  for (int32_t row : workspace.voters) {
    const float* logits = LogitsOf(input, row);
    GateExps(logits, experts, *std::max_element(logits, logits + experts), exps);
    uint64_t total = 0;
    for (size_t e = 0; e < experts; ++e) {
      total += Whole(static_cast<double>(exps[e]) * kFine + 0.5);
    }
    const double share = kUnit * kFine / static_cast<double>(total);
    const std::span<uint32_t> mass = workspace.MassOf(row);
    for (size_t e = 0; e < experts; ++e) {
      mass[e] = static_cast<uint32_t>(Whole(static_cast<double>(exps[e]) * share + 0.5));
      workspace.column_mass[e] += mass[e];
    }
  }
}

}  // namespace lynx::moe::internal
