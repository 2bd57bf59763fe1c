#include "common/collective/memory_rendezvous.h"

#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"

namespace lynx::collective {

absl::Status MemoryRendezvous::Put(const std::string& key, std::string value) {
  MutexLock lock(mu_);
  if (!values_.emplace(key, std::move(value)).second) {
    return absl::AlreadyExistsError(absl::StrCat("'", key, "' was put already"));
  }
  changed_.NotifyAll();
  return absl::OkStatus();
}

absl::StatusOr<std::string> MemoryRendezvous::Get(const std::string& key, absl::Duration timeout) {
  const auto deadline = std::chrono::steady_clock::now() + absl::ToChronoNanoseconds(timeout);
  MutexLock lock(mu_);
  for (;;) {
    const auto it = values_.find(key);
    if (it != values_.end()) return it->second;
    if (!changed_.WaitUntil(mu_, deadline) && !values_.contains(key)) {
      return absl::DeadlineExceededError(
          absl::StrCat("nobody put '", key, "' within ", absl::FormatDuration(timeout)));
    }
  }
}

}  // namespace lynx::collective
