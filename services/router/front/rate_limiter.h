#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "absl/time/time.h"
#include "common/base/mutex.h"
#include "common/http/types.h"
#include "services/router/front/api_keys.h"

namespace lynx::router {

// An allowance that refills evenly and never holds more than a minute's worth. What is taken may
// leave it in debt, which must refill too: so work whose size shows only when it is done can be
// charged, and work larger than the whole bucket is not refused for ever.
//
// Pure; times must not go backwards. Not thread-safe.
class TokenBucket {
 public:
  TokenBucket(int64_t per_minute, absl::Time now);  // Full. per_minute > 0

  // What is there stays, as far as the new size allows.
  void SetRate(int64_t per_minute, absl::Time now);

  // How long until `amount` (or a full bucket, if that is less) is there; zero: it is.
  absl::Duration WaitFor(double amount, absl::Time now) const;
  void Take(double amount, absl::Time now);

  int64_t per_minute() const { return per_minute_; }
  int64_t Remaining(absl::Time now) const;  // Whole ones, at least 0.
  absl::Duration UntilFull(absl::Time now) const;

 private:
  double Level(absl::Time now) const;

  int64_t per_minute_;
  double level_;
  absl::Time at_;  // When level_ was so.
};

enum class LimitKind { kRequests, kTokens };

// What one name has used of its limits, over all its keys. Thread-safe.
class KeyUsage {
 public:
  // Whether work may begin.
  struct Decision {
    absl::Duration retry_after = absl::ZeroDuration();  // Zero: it may.
    LimitKind kind = LimitKind::kRequests;
    int64_t per_minute = 0;

    bool allowed() const { return retry_after == absl::ZeroDuration(); }
  };

  KeyUsage(const RateLimits& limits, absl::Time now);
  void SetLimits(const RateLimits& limits, absl::Time now) LYNX_EXCLUDES(mu_);

  // Whether there is room for one more request, which takes nothing.
  Decision CheckRequest(absl::Time now) const LYNX_EXCLUDES(mu_);
  // Takes one request, or the tokens of one's prompt; nothing when not allowed.
  Decision TakeRequest(absl::Time now) LYNX_EXCLUDES(mu_);
  Decision TakePrompt(int64_t tokens, absl::Time now) LYNX_EXCLUDES(mu_);
  // Of a request under way: always allowed, on credit if need be.
  void ChargeOutput(int64_t tokens, absl::Time now) LYNX_EXCLUDES(mu_);

  // X-RateLimit-* as OpenAI has them, for the limits there are.
  http::Headers Headers(absl::Time now) const LYNX_EXCLUDES(mu_);

 private:
  mutable Mutex mu_;
  std::unique_ptr<TokenBucket> requests_ LYNX_GUARDED_BY(mu_);  // Null: no limit.
  std::unique_ptr<TokenBucket> tokens_ LYNX_GUARDED_BY(mu_);
};

// The usage of every name. Thread-safe.
class RateLimiter {
 public:
  // Names that stay keep what they have used.
  void SetLimits(const std::map<std::string, RateLimits>& limits, absl::Time now)
      LYNX_EXCLUDES(mu_);
  // Null for an unknown name.
  std::shared_ptr<KeyUsage> Find(const std::string& name) const LYNX_EXCLUDES(mu_);

 private:
  mutable Mutex mu_;
  std::map<std::string, std::shared_ptr<KeyUsage>> usage_ LYNX_GUARDED_BY(mu_);
};

}  // namespace lynx::router
