#pragma once

#include <cstdint>
#include <span>

#include "common/kv/kv_groups.h"
#include "common/node/moe_metrics.h"
#include "common/proto/control.pb.h"

namespace lynx::node {

// Tells routers of the blocks of a node: `room` are those free for newcomers, of each of its
// attention replicas, which have `capacity` each.
void DescribeBlocks(int32_t capacity, std::span<const int64_t> room, proto::NodeStatus& status);

// Tells routers how many blocks a sequence holds on this node, whose steps have up to `step_rows`
// rows. Nothing is said where all layers keep all tokens.
void DescribeGroups(const kv::KvGroups& groups, int32_t step_rows, proto::NodeStatus& status);

// What the node did since its start: `tokens` as proto::NodeTotals counts them, and its plans.
void DescribeTotals(int64_t tokens, const MoeMetrics::Totals& plans, proto::NodeStatus& status);

}  // namespace lynx::node
