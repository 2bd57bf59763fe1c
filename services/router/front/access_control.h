#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "common/http/server.h"
#include "common/telemetry/metrics.h"
#include "services/router/front/api_keys.h"
#include "services/router/front/rate_limiter.h"

namespace lynx::router {

// Lets through whoever has a key, in `Authorization: Bearer KEY`, and requests left in its minute:
// every path and method, known or not, but for GET and HEAD of /livez, /readyz, /startupz and
// /health. Others get 401 or 429 in OpenAI's form, before their body is read. HttpRequest::user of
// what goes on is the key's name.
//
// A POST counts as a request once its body is there.
class AccessControl final : public http::RequestHandler {
 public:
  // All are borrowed. Nobody has a key before Load.
  AccessControl(http::RequestHandler& next, RateLimiter& limiter, const Clock& clock,
                telemetry::Registry& registry);

  // Takes the keys and limits of a file. Thread-safe. Failures are LoadApiKeys'; what was in force
  // stays so then, and the caller says so in the log.
  absl::Status Load(const std::filesystem::path& file) LYNX_EXCLUDES(mu_);

  void Handle(http::HttpRequest request, std::shared_ptr<http::ResponseWriter> writer) override;
  std::optional<http::HttpResponse> RefuseEarly(const http::HttpRequest& head) override;
  bool AnswersWhenFull(const http::HttpRequest& head) override {
    return next_.AnswersWhenFull(head);
  }
  std::string ErrorBody(int status, std::string_view message) override {
    return next_.ErrorBody(status, message);
  }

 private:
  // Whose request it is; null for nobody's, which `refusal` then answers.
  std::shared_ptr<KeyUsage> Authenticate(const http::HttpRequest& head, std::string& name,
                                         std::optional<http::HttpResponse>& refusal);

  http::RequestHandler& next_;
  RateLimiter& limiter_;
  const Clock& clock_;
  mutable Mutex mu_;
  std::shared_ptr<const ApiKeys> keys_ LYNX_GUARDED_BY(mu_);  // Null before Load.
  telemetry::Gauge key_count_;
  telemetry::Counter loaded_;
  telemetry::Counter load_failed_;
  telemetry::Counter no_key_;
  telemetry::Counter unknown_key_;
  telemetry::Counter over_limit_;
};

// What a request over its limit hears: 429, with the headers of the limits.
http::HttpResponse RateLimitResponse(const KeyUsage::Decision& decision, const KeyUsage& usage,
                                     absl::Time now, const std::string& request_id);

}  // namespace lynx::router
