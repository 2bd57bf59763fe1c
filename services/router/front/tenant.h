#pragma once

#include <string_view>

#include "common/base/fair_share.h"
#include "common/http/types.h"

namespace lynx::router {

// Whom a request counts for where tenants share fairly (docs/scheduling.md), a hash of the first of
// these that it has:
//   the name of the API key that let it in, where keys are checked: nothing else counts then,
//   the header X-Gateway-Inference-Fairness-Id, which gateways set,
//   an API key: Authorization, Api-Key or X-Api-Key,
//   `end_user`, from its body: only where there are no keys, since clients make it up.
// 0 when it has none: all those are one tenant. Equal in every router. Pure; thread-safe.
TenantId TenantOf(const http::HttpRequest& request, std::string_view end_user);

}  // namespace lynx::router
