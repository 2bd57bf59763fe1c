#include "services/router/front/rate_limiter.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"

namespace lynx::router {
namespace {

void SetRate(std::unique_ptr<TokenBucket>& bucket, int64_t per_minute, absl::Time now) {
  if (per_minute == 0) {
    bucket.reset();
  } else if (bucket == nullptr) {
    bucket = std::make_unique<TokenBucket>(per_minute, now);
  } else {
    bucket->SetRate(per_minute, now);
  }
}

KeyUsage::Decision Take(TokenBucket* bucket, LimitKind kind, double amount, absl::Time now) {
  if (bucket == nullptr) return {};
  const absl::Duration wait = bucket->WaitFor(amount, now);
  if (wait > absl::ZeroDuration()) return {wait, kind, bucket->per_minute()};
  bucket->Take(amount, now);
  return {};
}

void AddHeaders(const char* of, const TokenBucket& bucket, absl::Time now, http::Headers& headers) {
  const auto name = [&](const char* what) { return absl::StrCat("X-RateLimit-", what, "-", of); };
  headers.emplace_back(name("Limit"), absl::StrCat(bucket.per_minute()));
  headers.emplace_back(name("Remaining"), absl::StrCat(bucket.Remaining(now)));
  headers.emplace_back(name("Reset"), absl::FormatDuration(absl::Ceil(bucket.UntilFull(now),
                                                                      absl::Milliseconds(1))));
}

}  // namespace

TokenBucket::TokenBucket(int64_t per_minute, absl::Time now)
    : per_minute_(per_minute), level_(static_cast<double>(per_minute)), at_(now) {}

void TokenBucket::SetRate(int64_t per_minute, absl::Time now) {
  level_ = std::min(Level(now), static_cast<double>(per_minute));
  at_ = now;
  per_minute_ = per_minute;
}

double TokenBucket::Level(absl::Time now) const {
  const auto full = static_cast<double>(per_minute_);
  return std::min(full, level_ + full * absl::ToDoubleSeconds(now - at_) / 60);
}

absl::Duration TokenBucket::WaitFor(double amount, absl::Time now) const {
  const auto full = static_cast<double>(per_minute_);
  const double missing = std::min(amount, full) - Level(now);
  // Sums of many parts of a request are off by less.
  if (missing < 1e-6) return absl::ZeroDuration();
  return absl::Seconds(missing * 60 / full);
}

void TokenBucket::Take(double amount, absl::Time now) {
  level_ = Level(now) - amount;
  at_ = now;
}

int64_t TokenBucket::Remaining(absl::Time now) const {
  return static_cast<int64_t>(std::max(0.0, std::floor(Level(now) + 1e-6)));
}

absl::Duration TokenBucket::UntilFull(absl::Time now) const {
  return WaitFor(static_cast<double>(per_minute_), now);
}

KeyUsage::KeyUsage(const RateLimits& limits, absl::Time now) { SetLimits(limits, now); }

void KeyUsage::SetLimits(const RateLimits& limits, absl::Time now) {
  MutexLock lock(mu_);
  SetRate(requests_, limits.requests_per_minute, now);
  SetRate(tokens_, limits.tokens_per_minute, now);
}

KeyUsage::Decision KeyUsage::CheckRequest(absl::Time now) const {
  MutexLock lock(mu_);
  if (requests_ == nullptr) return {};
  return {requests_->WaitFor(1, now), LimitKind::kRequests, requests_->per_minute()};
}

KeyUsage::Decision KeyUsage::TakeRequest(absl::Time now) {
  MutexLock lock(mu_);
  return Take(requests_.get(), LimitKind::kRequests, 1, now);
}

KeyUsage::Decision KeyUsage::TakePrompt(int64_t tokens, absl::Time now) {
  MutexLock lock(mu_);
  return Take(tokens_.get(), LimitKind::kTokens, static_cast<double>(tokens), now);
}

void KeyUsage::ChargeOutput(int64_t tokens, absl::Time now) {
  MutexLock lock(mu_);
  if (tokens_ != nullptr) tokens_->Take(static_cast<double>(tokens), now);
}

http::Headers KeyUsage::Headers(absl::Time now) const {
  MutexLock lock(mu_);
  http::Headers headers;
  if (requests_ != nullptr) AddHeaders("Requests", *requests_, now, headers);
  if (tokens_ != nullptr) AddHeaders("Tokens", *tokens_, now, headers);
  return headers;
}

void RateLimiter::SetLimits(const std::map<std::string, RateLimits>& limits, absl::Time now) {
  MutexLock lock(mu_);
  std::erase_if(usage_, [&](const auto& entry) { return !limits.contains(entry.first); });
  for (const auto& [name, of_name] : limits) {
    std::shared_ptr<KeyUsage>& usage = usage_[name];
    if (usage == nullptr) {
      usage = std::make_shared<KeyUsage>(of_name, now);
    } else {
      usage->SetLimits(of_name, now);
    }
  }
}

std::shared_ptr<KeyUsage> RateLimiter::Find(const std::string& name) const {
  MutexLock lock(mu_);
  const auto it = usage_.find(name);
  return it == usage_.end() ? nullptr : it->second;
}

}  // namespace lynx::router
