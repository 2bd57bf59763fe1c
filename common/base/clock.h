#pragma once

#include <atomic>
#include <cstdint>

#include "absl/time/time.h"

namespace lynx {

// Source of time for everything that decides. Monotonic: never goes backwards, unrelated to the
// wall clock, comparable only within one process. Thread-safe.
class Clock {
 public:
  virtual ~Clock() = default;
  virtual absl::Time Now() const = 0;
};

// std::chrono::steady_clock, mapped onto absl::Time by an arbitrary origin.
class SteadyClock final : public Clock {
 public:
  absl::Time Now() const override;
  static SteadyClock& Instance();
};

// Moves only when told to.
class ManualClock final : public Clock {
 public:
  explicit ManualClock(absl::Time start = absl::UnixEpoch() + absl::Hours(1))
      : now_ns_(absl::ToUnixNanos(start)) {}
  absl::Time Now() const override { return absl::FromUnixNanos(now_ns_.load()); }
  void Advance(absl::Duration by) { now_ns_.fetch_add(absl::ToInt64Nanoseconds(by)); }

 private:
  std::atomic<int64_t> now_ns_;
};

}  // namespace lynx
