#pragma once

#include "absl/time/time.h"

namespace lynx::router {

// When sequences that lost their nodes may begin anew, so that many failures at once, or failures
// again and again, do not become a storm of work that is done twice. A bucket of permits: each
// request that comes in brings a part of one, time brings some, each retry takes one. An empty
// bucket makes retries wait for what time brings, in the order in which they ask; it fails none,
// their own bounds do that. Pure; not thread-safe.
class RetryBudget {
 public:
  struct Options {
    double per_request = 0.2;
    double per_second = 10;
    double burst = 1024;  // At most so many permits; full at first.
  };

  RetryBudget(const Options& options, absl::Time now);

  void OnRequest(absl::Time now);
  // Takes a permit; when the retry may begin, `now` if there was one.
  absl::Time Take(absl::Time now);

 private:
  void Refill(absl::Time now);

  const Options options_;
  double permits_;  // Negative: taken before they were there.
  absl::Time refilled_;
};

// Before a sequence's `retry`-th retry (from 1): evenly drawn up to 50 ms, twice as much for each
// further one, at most 2 s. `random` is any 64 random bits.
absl::Duration RetryJitter(int retry, uint64_t random);

}  // namespace lynx::router
