#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/kv/kv_layout.h"
#include "common/model/memory_need.h"
#include "common/node/node_config.h"

namespace lynx::node {

// Blocks of a node's KV cache. What --kv-memory says is kept, and has to hold one whole context of
// `context` tokens: a node that cannot serve the longest request it promises is of little use.
// Where it says nothing, 1 GiB or that one context, whichever is more. --kv-blocks stands as it is.
//   InvalidArgument  --kv-memory is less; names what is needed and which context would fit.
absl::StatusOr<int32_t> KvBlocks(const NodeConfig& config, const kv::KvLayout& layout,
                                 int32_t context, int32_t step_rows);

// The same in memory of a GPU, where KV may have what is left beside the rest: all of it where
// neither option says anything.
//   InvalidArgument    as above.
//   ResourceExhausted  there is not so much; says what is needed for what.
absl::StatusOr<int32_t> DeviceKvBlocks(const NodeConfig& config, const kv::KvLayout& layout,
                                       int32_t context, int32_t step_rows,
                                       const model::DeviceRoom& room);

// ResourceExhausted when a node that needs so much would not fit into `available` bytes: before the
// system ends it for that in the middle of its load. Says what is needed for what, and the options
// that take less.
absl::Status CheckNodeMemory(const model::MemoryNeed& need, int64_t available);

}  // namespace lynx::node
