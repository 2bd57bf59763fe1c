#pragma once

#include <cstddef>
#include <cstdint>
#include <map>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace lynx::router {

// Who gets in, who waits, who is refused: a bounded queue in order of arrival before a bounded
// number of sequences in flight. Pure bookkeeping; waiting times are the caller's.
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
  using Ticket = uint64_t;  // Order of arrival.

  explicit AdmissionQueue(Options options) : options_(options) {}

  // ResourceExhausted: the queue is full and nobody would be let through at once.
  absl::Status Enter(uint64_t id, absl::Time now, Ticket& ticket);

  void Dispatch(Ticket ticket, absl::Time now);  // Queued -> in flight.
  void Requeue(Ticket ticket, uint64_t id);      // In flight -> queued.
  void Leave(Ticket ticket);                     // Ends, wherever it is.

  bool may_dispatch() const { return in_flight_ < options_.max_in_flight; }
  size_t queued() const { return queue_.size(); }
  size_t in_flight() const { return in_flight_; }

  // In order of arrival. Do not change the queue while holding an iterator into it.
  const std::map<Ticket, uint64_t>& queue() const { return queue_; }

  // How long one that enters now is going to wait, at the queue's recent pace.
  absl::Duration ExpectedWait() const;
  // When a refused client may try again: the queue's length at its recent pace, 1 s to 60 s.
  absl::Duration RetryAfter() const;

 private:
  const Options options_;
  std::map<Ticket, uint64_t> queue_;
  size_t in_flight_ = 0;
  Ticket next_ = 1;
  absl::Time last_dispatch_ = absl::InfinitePast();
  absl::Duration mean_gap_ = absl::ZeroDuration();  // Between dispatches while someone waits.
};

}  // namespace lynx::router
