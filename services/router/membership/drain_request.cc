#include "services/router/membership/drain_request.h"

#include <nlohmann/json.hpp>

namespace lynx::router {

absl::StatusOr<std::string> ParseDrainRequest(std::string_view body) {
  const auto json = nlohmann::json::parse(body, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object() || json.size() != 1 || !json.contains("node") ||
      !json["node"].is_string()) {
    return absl::InvalidArgumentError(R"(the body has to be {"node": "host:port"})");
  }
  return json["node"].get<std::string>();
}

}  // namespace lynx::router
