#include <algorithm>

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
  const auto votes = std::span(workspace.votes).first(workspace.experts);
  const auto with_at_least = [&](uint32_t count) {
    return std::ranges::count_if(votes, [&](uint32_t own) { return own >= count; });
  };
  // The most votes that M experts have: those with more are in, of those with as many some.
  uint32_t border = 0;
  for (auto most = static_cast<uint32_t>(workspace.voters.size()); border < most;) {
    const uint32_t middle = border + (most - border + 1) / 2;
    if (with_at_least(middle) >= policy.experts) {
      border = middle;
    } else {
      most = middle - 1;
    }
  }
  auto open = policy.experts - with_at_least(border + 1);
  for (int32_t id : OrderByMass(workspace)) {
    const auto e = static_cast<size_t>(id);
    if (votes[e] < border || (votes[e] == border && open == 0)) continue;
    workspace.selected[e] = 1;
    if (votes[e] == border) --open;
  }
  SelectFloors(policy.kept_ranks(), workspace);
}

}  // namespace lynx::moe::internal
