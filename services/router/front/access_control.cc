#include "services/router/front/access_control.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "services/router/front/replies.h"

namespace lynx::router {
namespace {

// Longer than any key; what a stranger can make us hash.
constexpr size_t kMaxKeyBytes = 512;

bool IsOpenToAll(const http::HttpRequest& head) {
  if (head.method != "GET" && head.method != "HEAD") return false;
  return head.path == "/livez" || head.path == "/readyz" || head.path == "/startupz" ||
         head.path == "/health";
}

// The key that a request presents; nothing when there is none, or two.
std::optional<std::string_view> PresentedKey(const http::HttpRequest& head) {
  std::optional<std::string_view> value;
  for (const auto& [name, field] : head.headers) {
    if (!http::EqualsIgnoreCase(name, "authorization")) continue;
    if (value.has_value()) return std::nullopt;
    value = field;
  }
  constexpr std::string_view kScheme = "Bearer ";
  if (!value.has_value() || value->size() <= kScheme.size() ||
      !http::EqualsIgnoreCase(value->substr(0, kScheme.size()), kScheme)) {
    return std::nullopt;
  }
  const size_t start = value->find_first_not_of(' ', kScheme.size());
  if (start == std::string_view::npos) return std::nullopt;
  return value->substr(start);
}

http::HttpResponse Unauthorized(std::string message, const http::HttpRequest& head) {
  const ApiError error{.http_status = 401,
                       .message = std::move(message),
                       .type = "invalid_request_error",
                       .param = "",
                       .code = "invalid_api_key"};
  http::HttpResponse response = ErrorResponse(error, RequestIdOf(head));
  response.headers.emplace_back("WWW-Authenticate", "Bearer");
  return response;
}

}  // namespace

http::HttpResponse RateLimitResponse(const KeyUsage::Decision& decision, const KeyUsage& usage,
                                     absl::Time now, const std::string& request_id) {
  const char* kind = decision.kind == LimitKind::kRequests ? "requests" : "tokens";
  ApiError error{.http_status = 429,
                 .message = "",
                 .type = kind,
                 .param = "",
                 .code = "rate_limit_exceeded",
                 .retry_after = decision.retry_after};
  error.message = absl::StrCat(
      "Rate limit reached: this key may use ", decision.per_minute, " ", kind,
      " per minute. Please try again in ",
      absl::FormatDuration(absl::Ceil(decision.retry_after, absl::Milliseconds(1))), ".");
  http::HttpResponse response = ErrorResponse(error, request_id);
  for (auto& header : usage.Headers(now)) response.headers.push_back(std::move(header));
  return response;
}

AccessControl::AccessControl(http::RequestHandler& next, RateLimiter& limiter, const Clock& clock,
                             telemetry::Registry& registry)
    : next_(next),
      limiter_(limiter),
      clock_(clock),
      key_count_(registry.AddGauge("lynx_router_api_keys", "Keys in force")),
      loaded_(registry.AddCounter("lynx_router_api_key_loads_total",
                                  "Readings of the file of keys; after a failed one the keys "
                                  "before it stay in force",
                                  {{"result", "ok"}})),
      load_failed_(registry.AddCounter("lynx_router_api_key_loads_total",
                                       "Readings of the file of keys; after a failed one the keys "
                                       "before it stay in force",
                                       {{"result", "failed"}})),
      no_key_(registry.AddCounter("lynx_router_denied_requests_total",
                                  "Requests refused for their key or its limits",
                                  {{"reason", "no_key"}})),
      unknown_key_(registry.AddCounter("lynx_router_denied_requests_total",
                                       "Requests refused for their key or its limits",
                                       {{"reason", "unknown_key"}})),
      over_limit_(registry.AddCounter("lynx_router_denied_requests_total",
                                      "Requests refused for their key or its limits",
                                      {{"reason", "request_limit"}})) {}

absl::Status AccessControl::Load(const std::filesystem::path& file) {
  absl::StatusOr<ApiKeys> keys = LoadApiKeys(file);
  if (!keys.ok()) {
    load_failed_.Increment();
    return keys.status();
  }
  limiter_.SetLimits(keys->limits(), clock_.Now());
  key_count_.Set(static_cast<double>(keys->size()));
  loaded_.Increment();
  auto shared = std::make_shared<const ApiKeys>(*std::move(keys));
  MutexLock lock(mu_);
  keys_ = std::move(shared);
  return absl::OkStatus();
}

std::shared_ptr<KeyUsage> AccessControl::Authenticate(const http::HttpRequest& head,
                                                      std::string& name,
                                                      std::optional<http::HttpResponse>& refusal) {
  const std::optional<std::string_view> key = PresentedKey(head);
  if (!key.has_value()) {
    no_key_.Increment();
    refusal = Unauthorized(
        "You did not provide an API key: send one, and only one, as 'Authorization: Bearer KEY'",
        head);
    return nullptr;
  }
  std::shared_ptr<const ApiKeys> keys;
  {
    MutexLock lock(mu_);
    keys = keys_;
  }
  const std::string* owner =
      keys == nullptr || key->size() > kMaxKeyBytes ? nullptr : keys->FindName(*key);
  std::shared_ptr<KeyUsage> usage = owner == nullptr ? nullptr : limiter_.Find(*owner);
  if (usage == nullptr) {  // Also one that a reload is taking away this moment.
    unknown_key_.Increment();
    refusal = Unauthorized("Incorrect API key provided", head);
    return nullptr;
  }
  name = *owner;
  return usage;
}

std::optional<http::HttpResponse> AccessControl::RefuseEarly(const http::HttpRequest& head) {
  if (IsOpenToAll(head)) return next_.RefuseEarly(head);
  std::optional<http::HttpResponse> refusal;
  std::string name;
  const std::shared_ptr<KeyUsage> usage = Authenticate(head, name, refusal);
  if (usage == nullptr) return refusal;
  if (head.method == "POST") {
    const absl::Time now = clock_.Now();
    const KeyUsage::Decision decision = usage->CheckRequest(now);
    if (!decision.allowed()) {
      over_limit_.Increment();
      return RateLimitResponse(decision, *usage, now, RequestIdOf(head));
    }
  }
  return next_.RefuseEarly(head);
}

void AccessControl::Handle(http::HttpRequest request,
                           std::shared_ptr<http::ResponseWriter> writer) {
  if (IsOpenToAll(request)) return next_.Handle(std::move(request), std::move(writer));
  std::optional<http::HttpResponse> refusal;
  std::string name;
  const std::shared_ptr<KeyUsage> usage = Authenticate(request, name, refusal);
  if (usage != nullptr && request.method == "POST") {
    const absl::Time now = clock_.Now();
    const KeyUsage::Decision decision = usage->TakeRequest(now);
    if (!decision.allowed()) {
      over_limit_.Increment();
      refusal = RateLimitResponse(decision, *usage, now, RequestIdOf(request));
    }
  }
  if (refusal.has_value()) {
    writer->Send(*std::move(refusal)).IgnoreError();  // Fails only when the client has left.
    return;
  }
  request.user = std::move(name);
  next_.Handle(std::move(request), std::move(writer));
}

}  // namespace lynx::router
