#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "common/concurrency/event_loop.h"
#include "common/http/routes.h"
#include "common/telemetry/metrics.h"

namespace lynx::http {

// Proof that one part of the process makes progress. It is stuck when it is busy and has not beaten
// for longer than its limit; an idle part is never stuck. Thread-safe; a beat is one atomic store.
class Heartbeat {
 public:
  // Call at each unit of progress (a step, a chunk of a prefill): far more often than the limit.
  void Beat();
  // Busy: there is work, so beats are due, the first within the limit from now. Parts that always
  // beat are busy from the start.
  void SetBusy(bool busy);

 private:
  friend class HealthPages;
  Heartbeat(std::string name, absl::Duration limit, const Clock& clock, bool busy);

  const std::string name_;
  const absl::Duration limit_;
  const Clock& clock_;
  std::atomic<int64_t> last_ns_;
  std::atomic<bool> busy_;
};

// State behind the pages that an orchestrator and Prometheus read, and the pages themselves:
//
//   /startupz  200 once SetStarted() was called.
//   /livez     200 unless a heartbeat is stuck: a process that answers but does not progress should
//              be restarted.
//   /readyz    200 once started, alive and without a reason against; /health is the same page.
//   /metrics   the registry in the text format.
//
// Anything but 200 is 503 with the reasons: {"status":"unavailable","reasons":["draining: ..."]}.
// Pages are made on the server's thread from this state alone and never wait for the part they
// report on. Thread-safe.
class HealthPages {
 public:
  // Both are borrowed.
  HealthPages(const telemetry::Registry& registry, const Clock& clock);

  void SetStarted();

  // Not ready while any reason stands. `key` is a short word ("draining", "no_decode_node"); a
  // second call with it replaces the text.
  void SetNotReady(const std::string& key, const std::string& reason) LYNX_EXCLUDES(mu_);
  void ClearNotReady(const std::string& key) LYNX_EXCLUDES(mu_);

  // For a part with pauses: idle until SetBusy(true).
  std::shared_ptr<Heartbeat> AddHeartbeat(const std::string& name, absl::Duration limit)
      LYNX_EXCLUDES(mu_);

  // Not alive when `loop` has not run a task of ours for `limit`. The watch ends with this object
  // or the loop, whichever goes first. The loop's clock must be the one given here.
  void WatchLoop(const std::string& name, EventLoop& loop, absl::Duration limit) LYNX_EXCLUDES(mu_);

  // What the pages say now; empty means 200.
  std::vector<std::string> ReasonsNotStarted() const;
  std::vector<std::string> ReasonsNotAlive() const LYNX_EXCLUDES(mu_);
  std::vector<std::string> ReasonsNotReady() const LYNX_EXCLUDES(mu_);

  // Serves the pages under `routes`. This object outlives the server.
  void AddTo(Routes& routes);
  // Also /metrics/vllm: what vLLM has, under its names, of the model `model_name`.
  void AddVllmMetricsTo(Routes& routes, const std::string& model_name);

 private:
  std::shared_ptr<Heartbeat> Add(const std::string& name, absl::Duration limit, bool busy)
      LYNX_EXCLUDES(mu_);

  const telemetry::Registry& registry_;
  const Clock& clock_;
  std::atomic<bool> started_ = false;
  mutable Mutex mu_;
  std::map<std::string, std::string> not_ready_ LYNX_GUARDED_BY(mu_);
  std::vector<std::shared_ptr<Heartbeat>> heartbeats_ LYNX_GUARDED_BY(mu_);
};

}  // namespace lynx::http
