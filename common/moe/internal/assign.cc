#include <algorithm>
#include <limits>

#include "common/moe/internal/stages.h"

namespace lynx::moe::internal {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

// Of the active experts, as far as the row may use them.
size_t BestActive(const float* scores, std::span<const int32_t> active, std::span<int32_t> ids) {
  size_t held = 0;
  for (int32_t e : active) {
    if (scores[e] == -kInf) continue;
    held = InsertBest(ids.data(), held, ids.size(), e,
                      [&](int32_t a, int32_t b) { return scores[a] > scores[b]; });
  }
  return held;
}

void ListActive(Workspace& workspace) {
  workspace.active_list.clear();
  for (size_t e = 0; e < workspace.experts; ++e) {
    if (workspace.active[e] != 0) workspace.active_list.push_back(static_cast<int32_t>(e));
  }
}

bool Prunes(const RouterInput& input, int32_t row) {
  return input.policies[static_cast<size_t>(row)]->kind == Policy::Kind::kPrune;
}

}  // namespace

void AddShortRows(const RouterInput& input, Workspace& workspace) {
  if (!workspace.masked) return;  // Every set has top-k experts, usable by all.
  ListActive(workspace);
  // All rows are judged by the same set: which of them comes first must not matter.
  for (int32_t row = 0; row < input.rows; ++row) {
    if (workspace.StateOf(row) != RowState::kRemapped || Prunes(input, row)) continue;
    if (BestActive(workspace.ScoresOf(row), workspace.active_list, workspace.ChosenOf(row)) ==
        workspace.top_k) {
      continue;
    }
    for (int32_t e : workspace.ExactOf(row)) workspace.active[static_cast<size_t>(e)] = 1;
  }
}

void Assign(const RouterInput& input, Workspace& workspace) {
  ListActive(workspace);
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
    if (std::all_of(exact.begin(), exact.end(),
                    [&](int32_t e) { return workspace.active[static_cast<size_t>(e)] != 0; })) {
      std::copy(exact.begin(), exact.end(), chosen.begin());
    } else {
      BestActive(workspace.ScoresOf(row), workspace.active_list, chosen);
    }
  }
}

}  // namespace lynx::moe::internal
