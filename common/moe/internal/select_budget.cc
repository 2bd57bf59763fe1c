#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "common/moe/internal/growing_set.h"
#include "common/moe/internal/stages.h"

// budget and marginal: every voter's floor, then the heaviest columns one after the other, until
// enough is active or the next expert adds too little. At least top-k experts.
namespace lynx::moe::internal {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

// Starts `set` with the floors, which `selected` holds then.
void AddFloors(const Policy& policy, Workspace& workspace, GrowingSet& set) {
  SelectFloors(policy.kept_ranks(), workspace);
  for (size_t e = 0; e < workspace.experts; ++e) {
    if (workspace.selected[e] != 0) set.Add(static_cast<int32_t>(e));
  }
}

// How many experts at most.
size_t Limit(const Policy& policy, Workspace& workspace) {
  if (policy.experts != Policy::kUnset) return static_cast<size_t>(policy.experts);
  if (policy.fraction <= 0) return workspace.experts;
  std::fill_n(workspace.votes.begin(), workspace.experts, 0u);
  for (int32_t row : workspace.voters) {
    for (int32_t e : workspace.ExactOf(row)) workspace.votes[static_cast<size_t>(e)] = 1;
  }
  const auto exact =
      std::accumulate(workspace.votes.begin(),
                      workspace.votes.begin() + static_cast<ptrdiff_t>(workspace.experts), 0u);
  // 0.28 of 25 is 7, though the product in binary is a little more.
  const double share = std::ceil(policy.fraction * exact - 1e-9);
  return std::max(workspace.top_k, static_cast<size_t>(share));
}

// By size alone: nobody asks what rows keep.
void SelectHeaviest(const RouterInput& input, const Policy& policy, size_t limit,
                    Workspace& workspace) {
  SumMass(input, workspace);
  SelectFloors(policy.kept_ranks(), workspace);
  const auto begin = workspace.selected.begin();
  auto size = static_cast<size_t>(
      std::count(begin, begin + static_cast<ptrdiff_t>(workspace.experts), uint8_t{1}));
  for (int32_t e : OrderByMass(workspace)) {
    if (size >= limit) break;
    uint8_t& selected = workspace.selected[static_cast<size_t>(e)];
    size += 1 - selected;
    selected = 1;
  }
}

}  // namespace

void SelectBudget(const RouterInput& input, const Policy& policy, Workspace& workspace) {
  const size_t limit = Limit(policy, workspace);
  if (policy.coverage <= 0 && policy.row_coverage <= 0) {
    SelectHeaviest(input, policy, limit, workspace);
    return;
  }
  const double enough = policy.coverage * static_cast<double>(kMassUnit) *
                        static_cast<double>(workspace.voters.size());
  GrowingSet set(input, workspace);
  AddFloors(policy, workspace, set);
  for (int32_t e : OrderByMass(workspace)) {
    if (set.size() >= workspace.top_k) {
      if (set.size() >= limit) break;
      if (policy.coverage > 0 && static_cast<double>(set.kept()) >= enough) break;
      if (policy.row_coverage > 0 && set.AllKeep(policy.row_coverage)) break;
    }
    if (workspace.selected[static_cast<size_t>(e)] == 0) set.Add(e);
  }
}

void SelectMarginal(const RouterInput& input, const Policy& policy, Workspace& workspace) {
  const auto cost = [&](int32_t e) {
    return input.expert_cost.empty() ? 1.0f : input.expert_cost[static_cast<size_t>(e)];
  };
  GrowingSet set(input, workspace);
  AddFloors(policy, workspace, set);
  const std::span<const int32_t> order = OrderByMass(workspace);
  // What costs nothing is there already, whatever it adds.
  for (int32_t e : order) {
    if (workspace.selected[static_cast<size_t>(e)] == 0 && cost(e) <= 0) set.Add(e);
  }
  // After an expert that is not worth its cost only cheaper ones can be.
  float refused = kInf;
  for (int32_t e : order) {
    if (workspace.selected[static_cast<size_t>(e)] != 0) continue;
    if (set.size() >= workspace.top_k) {
      if (cost(e) >= refused) continue;
      if (static_cast<double>(set.Gain(e)) <
          policy.lambda * static_cast<double>(cost(e)) * static_cast<double>(kMassUnit)) {
        refused = cost(e);
        continue;
      }
    }
    set.Add(e);
  }
}

}  // namespace lynx::moe::internal
