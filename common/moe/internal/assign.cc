#include <algorithm>

#include "common/moe/internal/row_ops.h"
#include "common/moe/internal/stages.h"

namespace lynx::moe::internal {
namespace {

bool Prunes(const RouterInput& input, int32_t row) {
  return input.policies[static_cast<size_t>(row)]->kind == Policy::Kind::kPrune;
}

}  // namespace

void AddShortRows(const RouterInput& input, Workspace& workspace) {
  if (!workspace.masked) return;  // Every set has top-k experts, usable by all.
  // All rows are judged by the same set: which of them comes first must not matter.
  std::copy_n(workspace.active.begin(), workspace.experts, workspace.selected.begin());
  for (int32_t row = 0; row < input.rows; ++row) {
    if (workspace.StateOf(row) != RowState::kRemapped || Prunes(input, row)) continue;
    TopRow top{workspace.ScoresOf(row), workspace.ChosenOf(row).data()};
    BestRowOps().top(&top, 1, workspace.selected.data(), workspace.experts, workspace.top_k);
    if (top.held == workspace.top_k) continue;
    for (int32_t e : workspace.ExactOf(row)) workspace.active[static_cast<size_t>(e)] = 1;
  }
}

void Assign(const RouterInput& input, Workspace& workspace) {
  workspace.top_rows.clear();
  for (int32_t row = 0; row < input.rows; ++row) {
    if (workspace.StateOf(row) != RowState::kRemapped) continue;
    const std::span<const int32_t> exact = workspace.ExactOf(row);
    const std::span<int32_t> chosen = workspace.ChosenOf(row);
    int32_t& width = workspace.widths[static_cast<size_t>(row)];
    if (Prunes(input, row)) {
      width = input.policies[static_cast<size_t>(row)]->k0;
      std::copy_n(exact.begin(), width, chosen.begin());
      continue;
    }
    width = input.top_k;
    // Those of its own that are active come before any stand-in.
    size_t kept = 0;
    for (int32_t e : exact) {
      chosen[kept] = e;
      kept += workspace.active[static_cast<size_t>(e)];
    }
    workspace.stand_ins[static_cast<size_t>(row)] = static_cast<int32_t>(exact.size() - kept);
    if (kept < exact.size()) {
      workspace.top_rows.push_back({workspace.ScoresOf(row), chosen.data(), kept, exact.data()});
    }
  }
  BestRowOps().top(workspace.top_rows.data(), workspace.top_rows.size(), workspace.active.data(),
                   workspace.experts, workspace.top_k);
}

}  // namespace lynx::moe::internal
