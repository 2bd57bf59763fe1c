#include <algorithm>
#include <numeric>

#include "common/moe/internal/stages.h"

// vote: the M experts that stand in most voters' top-k, ties to the heavier column, then the lower
// id; and every voter's floor on top.
namespace lynx::moe::internal {

void SelectVote(const RouterInput& input, const Policy& policy, Workspace& workspace) {
  SumMass(input, workspace);
  std::fill_n(workspace.votes.begin(), workspace.experts, 0u);
  for (int32_t row : workspace.voters) {
    for (int32_t e : workspace.ExactOf(row)) ++workspace.votes[static_cast<size_t>(e)];
  }
  const auto begin = workspace.order.begin();
  const auto end = begin + static_cast<ptrdiff_t>(workspace.experts);
  std::iota(begin, end, 0);
  std::partial_sort(begin, begin + policy.experts, end, [&](int32_t a, int32_t b) {
    const auto i = static_cast<size_t>(a);
    const auto j = static_cast<size_t>(b);
    if (workspace.votes[i] != workspace.votes[j]) return workspace.votes[i] > workspace.votes[j];
    if (workspace.column_mass[i] != workspace.column_mass[j]) {
      return workspace.column_mass[i] > workspace.column_mass[j];
    }
    return a < b;
  });
  for (int32_t i = 0; i < policy.experts; ++i) {
    workspace.selected[static_cast<size_t>(begin[i])] = 1;
  }
  SelectFloors(policy.kept_ranks(), workspace);
}

}  // namespace lynx::moe::internal
