#pragma once

#include <string_view>

#include "common/base/ids.h"
#include "common/proto/control.pb.h"

namespace lynx::node {

// Says in the log that the node has taken work for a sequence, and what the request is called
// elsewhere. Later lines name the sequence alone.
void LogTaken(std::string_view what, uint64_t sequence, const proto::RequestNames& names);

}  // namespace lynx::node
