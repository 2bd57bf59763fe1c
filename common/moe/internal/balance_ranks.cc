#include <algorithm>
#include <span>

#include "common/moe/internal/growing_set.h"
#include "common/moe/internal/stages.h"

// The rank that holds most of the active set sets the step's time. So: the lowest limit on experts
// of a rank under which the rows still keep enough, where ranks over the limit give up their
// lightest experts and ranks below it take in the heaviest that nobody chose, as far as needed.
namespace lynx::moe::internal {
namespace {

// Of all remapped rows; below 0 where one of them does not ask for it.
double Tolerance(const RouterInput& input, const Workspace& workspace) {
  double tolerance = 1;
  for (int32_t row = 0; row < input.rows; ++row) {
    if (workspace.StateOf(row) != RowState::kRemapped) continue;
    tolerance = std::min(tolerance, input.policies[static_cast<size_t>(row)]->ep_balance);
  }
  return tolerance;
}

// Of the chosen, those that no row may lose: its floor, and its best expert without one.
void SelectKept(const RouterInput& input, Workspace& workspace) {
  std::fill_n(workspace.kept_experts.begin(), workspace.experts, uint8_t{0});
  for (int32_t row : workspace.voters) {
    const bool own = workspace.StateOf(row) == RowState::kOwn;
    const int32_t floor =
        own ? input.top_k : std::max(1, input.policies[static_cast<size_t>(row)]->kept_ranks());
    for (int32_t e : workspace.ExactOf(row).first(static_cast<size_t>(floor))) {
      workspace.kept_experts[static_cast<size_t>(e)] =
          workspace.chosen_experts[static_cast<size_t>(e)];
    }
  }
}

}  // namespace

int32_t MostOnARank(const RouterInput& input, std::span<const uint8_t> set, Workspace& workspace) {
  workspace.shared_experts.clear();
  for (size_t e = 0; e < workspace.experts; ++e) {
    if (set[e] != 0) workspace.shared_experts.push_back(static_cast<int32_t>(e));
  }
  workspace.chooser.Choose(*input.placement, workspace.shared_experts);
  return workspace.chooser.most();
}

bool BalanceRanks(const RouterInput& input, int32_t below, Workspace& workspace) {
  const double tolerance = Tolerance(input, workspace);
  if (tolerance < 0 || input.placement == nullptr) return false;
  workspace.voters.clear();
  for (int32_t row = 0; row < input.rows; ++row) {
    if (workspace.Votes(row)) workspace.voters.push_back(row);
  }
  GrowingSet set(input, workspace);
  const std::span<const int32_t> order = OrderByMass(workspace);
  for (int32_t e : order) {
    if (workspace.active[static_cast<size_t>(e)] != 0) set.Add(e);
  }
  const std::span<uint8_t> chosen = std::span(workspace.chosen_experts).first(workspace.experts);
  const std::span<const uint8_t> kept = workspace.kept_experts;
  set.MarkUsed(chosen);
  SelectKept(input, workspace);
  const double enough = (1 - tolerance) * static_cast<double>(set.kept());
  const auto satisfied = [&] {
    return set.size() >= workspace.top_k && static_cast<double>(set.kept()) >= enough;
  };
  bool changed = false;
  const int32_t least = MostOnARank(input, kept, workspace);
  for (int32_t limit = MostOnARank(input, chosen, workspace) - 1; limit >= least; --limit) {
    set.Clear();
    workspace.chooser.Start(*input.placement);
    const auto add_where = [&](const auto& wanted) {
      for (int32_t e : order) {
        const auto i = static_cast<size_t>(e);
        if (workspace.selected[i] != 0 || !wanted(i) || !workspace.chooser.Add(e, limit)) continue;
        set.Add(e);
      }
    };
    add_where([&](size_t e) { return kept[e] != 0; });
    add_where([&](size_t e) { return chosen[e] != 0; });
    add_where([&](size_t) { return !satisfied(); });
    if (!satisfied() || set.size() >= static_cast<size_t>(below)) return changed;
    changed = true;
    std::copy_n(workspace.selected.begin(), workspace.experts, workspace.active.begin());
  }
  return changed;
}

}  // namespace lynx::moe::internal
