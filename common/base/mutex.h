#pragma once

#include <condition_variable>
#include <mutex>

#include "absl/base/thread_annotations.h"

// Clang thread-safety annotations under the project's prefix.
#define LYNX_GUARDED_BY(x) ABSL_GUARDED_BY(x)
#define LYNX_EXCLUDES(...) ABSL_LOCKS_EXCLUDED(__VA_ARGS__)
#define LYNX_REQUIRES(...) ABSL_EXCLUSIVE_LOCKS_REQUIRED(__VA_ARGS__)

namespace lynx {

// std::mutex with annotations. Not absl::Mutex: a packaged, uninstrumented Abseil makes
// ThreadSanitizer report every correctly locked section as a race.
class ABSL_LOCKABLE Mutex {
 public:
  void Lock() ABSL_EXCLUSIVE_LOCK_FUNCTION() { mu_.lock(); }
  void Unlock() ABSL_UNLOCK_FUNCTION() { mu_.unlock(); }

 private:
  friend class CondVar;
  std::mutex mu_;
};

class ABSL_SCOPED_LOCKABLE MutexLock {
 public:
  explicit MutexLock(Mutex& mu) ABSL_EXCLUSIVE_LOCK_FUNCTION(mu) : mu_(mu) { mu_.Lock(); }
  ~MutexLock() ABSL_UNLOCK_FUNCTION() { mu_.Unlock(); }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

 private:
  Mutex& mu_;
};

// Condition variable for Mutex. Waits may wake spuriously: loop on the condition.
class CondVar {
 public:
  void Wait(Mutex& mu) LYNX_REQUIRES(mu) {
    std::unique_lock<std::mutex> lock(mu.mu_, std::adopt_lock);
    cv_.wait(lock);
    lock.release();
  }
  // False when `deadline` passed first.
  template <typename TimePoint>
  bool WaitUntil(Mutex& mu, const TimePoint& deadline) LYNX_REQUIRES(mu) {
    std::unique_lock<std::mutex> lock(mu.mu_, std::adopt_lock);
    const bool woken = cv_.wait_until(lock, deadline) == std::cv_status::no_timeout;
    lock.release();
    return woken;
  }
  void NotifyOne() { cv_.notify_one(); }
  void NotifyAll() { cv_.notify_all(); }

 private:
  std::condition_variable cv_;
};

}  // namespace lynx
