#pragma once

#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace lynx::router {

// The endpoint in {"node": "host:port"}, what POST /nodes/drain takes. InvalidArgument: anything
// else.
absl::StatusOr<std::string> ParseDrainRequest(std::string_view body);

}  // namespace lynx::router
