#pragma once

#include <map>
#include <string>

#include "common/base/mutex.h"
#include "common/collective/rendezvous.h"

namespace lynx::collective {

// For ranks that are threads of one process.
class MemoryRendezvous final : public Rendezvous {
 public:
  absl::Status Put(const std::string& key, std::string value) override LYNX_EXCLUDES(mu_);
  absl::StatusOr<std::string> Get(const std::string& key, absl::Duration timeout) override
      LYNX_EXCLUDES(mu_);

 private:
  Mutex mu_;
  CondVar changed_;
  std::map<std::string, std::string> values_ LYNX_GUARDED_BY(mu_);
};

}  // namespace lynx::collective
