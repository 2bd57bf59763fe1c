#include <algorithm>

#include "common/moe/internal/stages.h"

// oea and prune: every voter's top-k0. If those are fewer experts than a row needs, the heaviest
// columns fill up (a pruned row needs no more than it has).
namespace lynx::moe::internal {

void SelectTopRanks(const RouterInput& input, const Policy& policy, Workspace& workspace) {
  SelectFloors(policy.k0, workspace);
  const auto begin = workspace.selected.begin();
  const auto end = begin + static_cast<ptrdiff_t>(workspace.experts);
  auto held = static_cast<size_t>(std::count(begin, end, uint8_t{1}));
  if (policy.kind == Policy::Kind::kPrune || held >= workspace.top_k) return;
  SumMass(input, workspace);
  for (; held < workspace.top_k; ++held) {
    size_t heaviest = workspace.experts;
    for (size_t e = 0; e < workspace.experts; ++e) {
      if (workspace.selected[e] != 0) continue;
      if (heaviest == workspace.experts ||
          workspace.column_mass[e] > workspace.column_mass[heaviest]) {
        heaviest = e;
      }
    }
    workspace.selected[heaviest] = 1;
  }
}

}  // namespace lynx::moe::internal
