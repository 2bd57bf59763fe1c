#pragma once

#include <chrono>

#include "absl/status/status.h"
#include "common/base/mutex.h"

namespace lynx::testing {

// What a callback was told, once it was. Thread-safe.
class ToldStatus {
 public:
  void Set(const absl::Status& status) LYNX_EXCLUDES(mu_) {
    MutexLock lock(mu_);
    status_ = status;
    changed_.NotifyAll();
  }
  // OK: nothing within a minute.
  absl::Status Wait() LYNX_EXCLUDES(mu_) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::minutes(1);
    MutexLock lock(mu_);
    while (status_.ok()) {
      if (!changed_.WaitUntil(mu_, deadline) && std::chrono::steady_clock::now() >= deadline) break;
    }
    return status_;
  }
  bool told() LYNX_EXCLUDES(mu_) {
    MutexLock lock(mu_);
    return !status_.ok();
  }

 private:
  Mutex mu_;
  CondVar changed_;
  absl::Status status_ LYNX_GUARDED_BY(mu_);
};

}  // namespace lynx::testing
