#include "common/node/group_status.h"

#include <algorithm>

#include "common/kv/kv_layout.h"

namespace lynx::node {

void DescribeBlocks(int32_t capacity, std::span<const int64_t> room, proto::NodeStatus& status) {
  int64_t free = 0;
  int64_t most = 0;
  for (const int64_t blocks : room) {
    free += std::max<int64_t>(0, blocks);
    most = std::max(most, blocks);
  }
  status.set_kv_blocks_total(capacity * static_cast<int32_t>(room.size()));
  status.set_kv_blocks_free(static_cast<int32_t>(free));
  if (room.size() == 1) return;
  status.set_kv_blocks_sequence(capacity);
  status.set_kv_blocks_free_sequence(static_cast<int32_t>(most));
}

void DescribeGroups(const kv::KvGroups& groups, int32_t step_rows, proto::NodeStatus& status) {
  if (groups == kv::KvGroups()) return;
  // What is granted goes up to two blocks beyond the next row.
  constexpr int32_t kGrantedRows = 2 * kv::kBlockTokens;
  for (int32_t g = 0; g < groups.count(); ++g) {
    proto::KvGroup& group = *status.add_kv_groups();
    group.set_most_blocks(static_cast<int32_t>(groups.MostBlocksOf(g, step_rows)));
    group.set_granted_blocks(static_cast<int32_t>(groups.MostBlocksOf(g, kGrantedRows)));
  }
}

void DescribeTotals(int64_t tokens, const MoeMetrics::Totals& plans, proto::NodeStatus& status) {
  proto::NodeTotals& totals = *status.mutable_totals();
  totals.set_tokens(tokens);
  totals.set_plans(plans.plans);
  totals.set_experts_exact(plans.experts_exact);
  totals.set_experts(plans.experts);
}

}  // namespace lynx::node
