#pragma once

#include <string_view>

namespace lynx::router {

// docs/openapi.json, as it was when this was built: the API in OpenAPI 3.1.
std::string_view OpenApiDocument();

}  // namespace lynx::router
