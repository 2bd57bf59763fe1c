#include "services/router/front/replies.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/ids.h"
#include "services/router/front/api_response.h"

namespace lynx::router {

std::string RequestIdOf(const http::HttpRequest& request) {
  constexpr size_t kMaxBytes = 128;
  const auto given = request.Header("x-request-id");
  const bool sane =
      given.has_value() && !given->empty() && given->size() <= kMaxBytes &&
      std::all_of(given->begin(), given->end(), [](char c) { return c > ' ' && c <= '~'; });
  return sane ? std::string(*given) : absl::StrCat("req-", HexId(RandomId()));
}

http::HttpResponse JsonResponse(int status, std::string body, const std::string& request_id) {
  http::HttpResponse response{.status = status, .headers = {}, .body = std::move(body)};
  response.headers.emplace_back("Content-Type", http::kJsonContentType);
  response.headers.emplace_back("X-Request-Id", request_id);
  return response;
}

http::HttpResponse ErrorResponse(const ApiError& error, const std::string& request_id) {
  http::HttpResponse response = JsonResponse(error.http_status, BuildError(error), request_id);
  if (error.retry_after > absl::ZeroDuration()) {
    response.headers.emplace_back("Retry-After", RetryAfterSeconds(error.retry_after));
  }
  return response;
}

}  // namespace lynx::router
