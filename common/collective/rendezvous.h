#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace lynx::collective {

// Where the ranks of a group tell each other how to be reached, before they can. Thread-safe.
class Rendezvous {
 public:
  virtual ~Rendezvous() = default;
  // AlreadyExists: somebody has put `key`; two processes say that they are the same rank.
  virtual absl::Status Put(const std::string& key, std::string value) = 0;
  // Waits until somebody has put it. DeadlineExceeded: nobody did within `timeout`.
  virtual absl::StatusOr<std::string> Get(const std::string& key, absl::Duration timeout) = 0;
};

}  // namespace lynx::collective
