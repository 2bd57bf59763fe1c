#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/base/fair_share.h"

namespace lynx::router {

// Who gets in, who waits, who is refused: a bounded queue before a bounded number of sequences in
// flight. Pure bookkeeping; waiting times are the caller's.
//
// In the queue the lower priority goes first, always; among equal ones tenants have equal shares by
// tokens; and those of one tenant go in order of arrival. A full queue lets one in that goes before
// the last of those who have not been in flight, who has to leave.
//
// A sequence is queued or in flight, never both. One that comes back from flight takes the place
// its arrival gives it, ahead of all who came later, and needs no room: it was let in before.
//
// Not thread-safe.
class AdmissionQueue {
 public:
  struct Options {
    size_t max_in_flight = 1024;
    size_t max_queued = 1024;
  };
  struct Newcomer {
    uint64_t id = 0;
    int32_t priority = 0;
    TenantId tenant = 0;
    int64_t tokens = 0;  // Of its prompt.
  };
  // Where it stands.
  struct Ticket {
    int32_t priority = 0;
    double place = 0;      // Of its tenant, when it came.
    uint64_t arrival = 0;  // Unlike any other's.
    int64_t tokens = 0;
    friend auto operator<=>(const Ticket&, const Ticket&) = default;
  };

  explicit AdmissionQueue(Options options) : options_(options) {}

  // `displaced`: who has to leave for it; the caller ends that one, which leaves.
  // ResourceExhausted: the queue is full of those who go before it, and nobody would be let through
  // at once.
  absl::Status Enter(const Newcomer& newcomer, absl::Time now, Ticket& ticket,
                     std::optional<uint64_t>& displaced);

  void Dispatch(Ticket ticket, absl::Time now);  // Queued -> in flight.
  void Requeue(Ticket ticket, uint64_t id);      // In flight -> queued.
  void Leave(Ticket ticket);                     // Ends, wherever it is.
  // The tenant has got so many tokens more: its next ones stand further back.
  void Used(TenantId tenant, int64_t tokens);

  bool may_dispatch() const { return in_flight_ < options_.max_in_flight; }
  size_t queued() const { return queue_.size(); }
  size_t in_flight() const { return in_flight_; }

  // In the order in which they go. Do not change the queue while holding an iterator into it.
  const std::map<Ticket, uint64_t>& queue() const { return queue_; }

  // How long one that enters now is going to wait, at the queue's recent pace.
  absl::Duration ExpectedWait() const;
  // When a refused client may try again: the queue's length at its recent pace, 1 s to 60 s.
  absl::Duration RetryAfter() const;

 private:
  const Options options_;
  std::map<Ticket, uint64_t> queue_;
  std::set<uint64_t> returned_;  // Arrivals of those in the queue that have been in flight.
  FairShare shares_;             // In tokens.
  size_t in_flight_ = 0;
  uint64_t next_ = 1;
  absl::Time last_dispatch_ = absl::InfinitePast();
  absl::Duration mean_gap_ = absl::ZeroDuration();  // Between dispatches while someone waits.
};

}  // namespace lynx::router
