#include "services/router/front/tenant.h"

#include <cstdint>

#include "common/base/mix.h"

namespace lynx::router {
namespace {

TenantId Hash(std::string_view text) {
  const uint64_t hash = SplitMixText(0, text);
  return hash == 0 ? 1 : hash;
}

}  // namespace

TenantId TenantOf(const http::HttpRequest& request, std::string_view end_user) {
  if (!request.user.empty()) return Hash(request.user);
  for (const char* name :
       {"x-gateway-inference-fairness-id", "authorization", "api-key", "x-api-key"}) {
    const auto value = request.Header(name);
    if (value.has_value() && !value->empty()) return Hash(*value);
  }
  return end_user.empty() ? 0 : Hash(end_user);
}

}  // namespace lynx::router
