#include <algorithm>

#include "common/moe/internal/stages.h"

namespace lynx::moe::internal {

void SelectFloors(int32_t ranks, Workspace& workspace) {
  for (int32_t row : workspace.voters) {
    const bool own = workspace.StateOf(row) == RowState::kOwn;
    const size_t kept = own ? workspace.top_k : static_cast<size_t>(ranks);
    for (int32_t e : workspace.ExactOf(row).first(kept)) {
      workspace.selected[static_cast<size_t>(e)] = 1;
    }
  }
}

}  // namespace lynx::moe::internal
