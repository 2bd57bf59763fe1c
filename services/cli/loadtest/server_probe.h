#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/http/types.h"
#include "services/cli/loadtest/prompt_text.h"
#include "services/cli/loadtest/request_body.h"

// What is asked of a server before any load. Blocking calls.
namespace lynx::loadtest {

// Where requests of an endpoint go. `base_url` ends in "/v1".
std::string EndpointUrl(const std::string& base_url, Endpoint endpoint);

// The first model of /v1/models. Unavailable: the server cannot be reached or names none.
absl::StatusOr<std::string> FindModel(const std::string& base_url, const http::Headers& headers,
                                      absl::Duration timeout);

// How the server counts made-up words, from a few small requests. Unavailable: it does not answer
// them, or its answers hold no usage.
absl::StatusOr<TokenScale> MeasureScale(const std::string& base_url, const http::Headers& headers,
                                        const RequestBody& body, uint64_t seed,
                                        absl::Duration timeout);

}  // namespace lynx::loadtest
