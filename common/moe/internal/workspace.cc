#include "common/moe/internal/workspace.h"

#include "common/base/check.h"

namespace lynx::moe::internal {

Workspace::Workspace(int32_t max_rows, int32_t max_experts, int32_t max_top_k)
    : chooser(max_experts, max_experts) {
  LYNX_CHECK(max_rows > 0 && max_experts > 0 && max_top_k > 0);
  const auto rows = static_cast<size_t>(max_rows);
  const auto width = static_cast<size_t>(max_experts);
  const auto k = static_cast<size_t>(max_top_k);
  states.resize(rows);
  exact_ids.resize(rows * k);
  score_buffer.resize(rows * width);
  row_buffer.resize(width);
  group_buffer.resize(width);
  top_rows.reserve(rows);
  voters.reserve(rows);
  done.resize(rows);
  selected.resize(width);
  bins.resize(rows * width);
  columns.resize(rows * width);
  liking.resize(width);
  order.resize(width);
  picks.resize(k);
  mass.resize(rows * width);
  column_mass.resize(width);
  votes.resize(width);
  kept_ids.resize(rows * k);
  kept_held.resize(rows);
  kept_sum.resize(rows);
  exact_sum.resize(rows);
  kept_ratio.resize(rows);
  active.resize(width);
  chosen_ids.resize(rows * k);
  widths.resize(rows);
  stand_ins.resize(rows);
  exps.resize(width);
  chosen_experts.resize(width);
  kept_experts.resize(width);
  shared_experts.reserve(width);
}

}  // namespace lynx::moe::internal
