#pragma once

#include <string>

#include "absl/time/time.h"
#include "services/router/membership/node_table.h"

namespace lynx::router {

// The nodes as this router sees them, for people and tools: {"nodes": [...]} in endpoint order,
// with all that a node told of itself in its last heartbeat (docs/metrics.md).
std::string NodesPage(const NodeTable& nodes, absl::Time now);

}  // namespace lynx::router
