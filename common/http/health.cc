#include "common/http/health.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/utf8.h"

namespace lynx::http {
namespace {

HttpResponse Page(const std::vector<std::string>& reasons) {
  HttpResponse response{
      .status = reasons.empty() ? 200 : 503,
      .headers = {{"Content-Type", kJsonContentType}, {"Cache-Control", "no-store"}},
      .body = {}};
  if (reasons.empty()) {
    response.body = "{\"status\":\"ok\"}\n";
    return response;
  }
  response.body = "{\"status\":\"unavailable\",\"reasons\":[";
  for (size_t i = 0; i < reasons.size(); ++i) {
    response.body += i == 0 ? "\"" : ",\"";
    AppendJsonEscaped(reasons[i], response.body);
    response.body += '"';
  }
  response.body += "]}\n";
  return response;
}

void AddPage(Routes& routes, const std::string& path, std::function<HttpResponse()> page) {
  routes.Add("GET", path,
             [page = std::move(page)](HttpRequest, std::shared_ptr<ResponseWriter> writer) {
               // Only fails when the prober has left.
               writer->Send(page()).IgnoreError();
             });
}

HttpResponse Exposition(std::string text) {
  return {.headers = {{"Content-Type", telemetry::kExpositionContentType}},
          .body = std::move(text)};
}

// Beats on the loop's thread until the heartbeat is gone or the loop stops.
void BeatOnLoop(EventLoop& loop, std::weak_ptr<Heartbeat> heartbeat, absl::Duration period) {
  std::shared_ptr<Heartbeat> alive = heartbeat.lock();
  if (alive == nullptr) return;
  alive->Beat();
  loop.RunAfter(period, [&loop, heartbeat = std::move(heartbeat), period]() mutable {
    BeatOnLoop(loop, std::move(heartbeat), period);
  });
}

}  // namespace

Heartbeat::Heartbeat(std::string name, absl::Duration limit, const Clock& clock, bool busy)
    : name_(std::move(name)), limit_(limit), clock_(clock), last_ns_(0), busy_(busy) {
  Beat();
}

void Heartbeat::Beat() { last_ns_.store(absl::ToUnixNanos(clock_.Now())); }

void Heartbeat::SetBusy(bool busy) {
  if (busy) Beat();  // Before it shows as busy: a probe between the two must not see an old beat.
  busy_.store(busy);
}

HealthPages::HealthPages(const telemetry::Registry& registry, const Clock& clock)
    : registry_(registry), clock_(clock) {}

void HealthPages::SetStarted() { started_.store(true); }

void HealthPages::SetNotReady(const std::string& key, const std::string& reason) {
  MutexLock lock(mu_);
  not_ready_[key] = reason;
}

void HealthPages::ClearNotReady(const std::string& key) {
  MutexLock lock(mu_);
  not_ready_.erase(key);
}

std::shared_ptr<Heartbeat> HealthPages::Add(const std::string& name, absl::Duration limit,
                                            bool busy) {
  std::shared_ptr<Heartbeat> heartbeat(new Heartbeat(name, limit, clock_, busy));
  MutexLock lock(mu_);
  heartbeats_.push_back(heartbeat);
  return heartbeat;
}

std::shared_ptr<Heartbeat> HealthPages::AddHeartbeat(const std::string& name,
                                                     absl::Duration limit) {
  return Add(name, limit, /*busy=*/false);
}

void HealthPages::WatchLoop(const std::string& name, EventLoop& loop, absl::Duration limit) {
  loop.Post([&loop, heartbeat = std::weak_ptr<Heartbeat>(Add(name, limit, /*busy=*/true)),
             period = limit / 5] { BeatOnLoop(loop, heartbeat, period); });
}

std::vector<std::string> HealthPages::ReasonsNotStarted() const {
  if (started_.load()) return {};
  return {"starting"};
}

std::vector<std::string> HealthPages::ReasonsNotAlive() const {
  std::vector<std::string> reasons;
  const absl::Time now = clock_.Now();
  MutexLock lock(mu_);
  for (const auto& heartbeat : heartbeats_) {
    if (!heartbeat->busy_.load()) continue;
    const absl::Duration age = now - absl::FromUnixNanos(heartbeat->last_ns_.load());
    if (age <= heartbeat->limit_) continue;
    reasons.push_back(absl::StrCat(heartbeat->name_, ": no progress for ",
                                   absl::ToInt64Seconds(age), " s, limit ",
                                   absl::FormatDuration(heartbeat->limit_)));
  }
  return reasons;
}

std::vector<std::string> HealthPages::ReasonsNotReady() const {
  std::vector<std::string> reasons = ReasonsNotStarted();
  for (std::string& reason : ReasonsNotAlive()) reasons.push_back(std::move(reason));
  MutexLock lock(mu_);
  for (const auto& [key, reason] : not_ready_) reasons.push_back(absl::StrCat(key, ": ", reason));
  return reasons;
}

void HealthPages::AddTo(Routes& routes) {
  const auto add = [&routes](const std::string& path, std::function<HttpResponse()> page) {
    AddPage(routes, path, std::move(page));
  };
  add("/startupz", [this] { return Page(ReasonsNotStarted()); });
  add("/livez", [this] { return Page(ReasonsNotAlive()); });
  add("/readyz", [this] { return Page(ReasonsNotReady()); });
  add("/health", [this] { return Page(ReasonsNotReady()); });
  add("/metrics", [this] { return Exposition(registry_.Render()); });
}

void HealthPages::AddVllmMetricsTo(Routes& routes, const std::string& model_name) {
  AddPage(routes, "/metrics/vllm",
          [this, labels = telemetry::Labels{{"model_name", model_name}, {"engine", "0"}}] {
            return Exposition(registry_.RenderAliases(telemetry::VllmAliases(), labels));
          });
}

}  // namespace lynx::http
