#pragma once

#include <cstdint>
#include <functional>

#include "absl/time/time.h"
#include "common/base/clock.h"

namespace lynx::node {

// How far the load of a big model is.
struct LoadedPart {
  int64_t done_bytes = 0;
  int64_t total_bytes = 0;
  double percent = 0;
  double bytes_per_second = 0;  // Since the last report, or the start.
};

// Makes a report every so often of a load that tells of itself far more often, and none of a load
// that is over sooner. For one thread.
class LoadProgress {
 public:
  // `clock` outlives this.
  LoadProgress(const Clock& clock, absl::Duration interval,
               std::function<void(const LoadedPart&)> report);

  void Update(int64_t done_bytes, int64_t total_bytes);

 private:
  const Clock* clock_;
  absl::Duration interval_;
  std::function<void(const LoadedPart&)> report_;
  absl::Time last_;
  int64_t last_bytes_ = 0;
};

}  // namespace lynx::node
