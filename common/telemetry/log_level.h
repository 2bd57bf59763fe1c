#pragma once

#include "common/telemetry/log.h"

namespace lynx::telemetry {

// Changes the least severe level that the process writes. Thread-safe.
void SetLogLevel(LogLevel level);

}  // namespace lynx::telemetry
