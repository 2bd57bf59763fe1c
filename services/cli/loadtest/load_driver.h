#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "services/cli/loadtest/answer_reader.h"
#include "services/cli/loadtest/request_record.h"
#include "services/cli/loadtest/token_timing.h"
#include "services/cli/loadtest/transport.h"
#include "services/cli/loadtest/workload.h"

namespace lynx::loadtest {

struct DriverOptions {
  bool closed_loop = false;  // Send as soon as fewer than max_open are open, whatever is due.
  int64_t max_open = 1;      // Open requests at a time, > 0.
  int64_t warmup = 0;        // The first so many are marked as such.
  int64_t requests = 0;      // Send so many besides; 0 is no limit.
  absl::Duration duration = absl::InfiniteDuration();  // Send what is due before then.
  absl::Duration timeout = absl::InfiniteDuration();   // From the sending of a request to its end.
};

// What a run has brought.
struct RunLog {
  std::vector<RequestRecord> records;  // In the order in which they ended.
  GapHistograms gaps;                  // Of measured requests that succeeded.
  int64_t unsent = 0;                  // Measured ones that were due and never sent.
  // Outcome and words -> how often; the first kinds only.
  std::map<std::pair<Outcome, std::string>, int64_t> problems;
};

// Runs one load: sends what is due, reads what comes, gives up what takes too long. Pure logic: the
// caller passes the time in, waits between calls and stands between it and the transport.
//
//   while (!driver.done()) {
//     driver.Tick(clock.Now());
//     transport.Poll(driver.NextWake() - clock.Now());
//   }
//
// A request that is due while max_open are open is sent late, never skipped: its record holds both
// times. A closed loop waits 0.1 s before it replaces a request that failed, so that a server that
// fails at once is not hammered. What of an open loop is still waiting when the duration is over is
// counted as unsent.
class LoadDriver final : public TransportObserver {
 public:
  // Both are borrowed. Ids of requests start at `first_id`; `start` is the time 0 of the plan.
  LoadDriver(const DriverOptions& options, Workload& workload, Transport& transport,
             RequestId first_id, absl::Time start);

  void Tick(absl::Time now);
  // When the next Tick() is due at the latest.
  absl::Time NextWake() const;
  // Breaks off: nothing more is sent, what is open ends as kUnfinished.
  void Stop(absl::Time now);
  bool done() const { return sending_over_ && open_.empty(); }

  void OnHead(RequestId id, const http::HttpResponse& head, absl::Time now) override;
  bool OnBody(RequestId id, std::string_view piece, absl::Time now) override;
  void OnEnd(RequestId id, const absl::Status& status, absl::Time now) override;

  // For a progress display. Warm-up included.
  int64_t sent() const { return sent_; }
  int64_t ended() const { return static_cast<int64_t>(log_.records.size()); }
  int64_t failed() const { return failed_; }
  int64_t output_tokens() const { return output_tokens_; }
  int64_t open() const { return static_cast<int64_t>(open_.size()); }
  RequestId next_id() const { return next_id_; }

  RunLog TakeLog() { return std::move(log_); }

 private:
  struct Open {
    RequestRecord record;
    AnswerReader reader;
    absl::Time deadline;
  };

  void Expire(absl::Time now);
  void FetchNext();
  void SendNext(absl::Time now);
  void CountUnsent();
  void Finish(RequestId id, absl::Time now);
  int64_t slots_taken() const { return open() + static_cast<int64_t>(cooling_.size()); }
  double Since(absl::Time time) const { return absl::ToDoubleSeconds(time - start_); }

  const DriverOptions options_;
  Workload& workload_;
  Transport& transport_;
  const absl::Time start_;
  RequestId next_id_;
  std::optional<PlannedRequest> next_;
  std::string next_body_;
  bool sending_over_ = false;
  std::deque<absl::Time> cooling_;                // Closed loop: ends of the waits after failures.
  absl::Time full_until_ = absl::InfinitePast();  // When max_open were last open.
  std::map<RequestId, Open> open_;                // In the order of sending: the oldest first.
  int64_t sent_ = 0;
  int64_t failed_ = 0;
  int64_t output_tokens_ = 0;
  RunLog log_;
};

}  // namespace lynx::loadtest
