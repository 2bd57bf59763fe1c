#pragma once

#include <string>

namespace lynx::telemetry {

// The conventional process_* families (CPU, memory, file descriptors, start time) in the text
// format, read from /proc at the call.
std::string RenderProcessMetrics();

}  // namespace lynx::telemetry
