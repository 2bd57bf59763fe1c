#include "common/node/load_progress.h"

#include <utility>

namespace lynx::node {

LoadProgress::LoadProgress(const Clock& clock, absl::Duration interval,
                           std::function<void(const LoadedPart&)> report)
    : clock_(&clock), interval_(interval), report_(std::move(report)), last_(clock.Now()) {}

void LoadProgress::Update(int64_t done_bytes, int64_t total_bytes) {
  const absl::Time now = clock_->Now();
  if (now - last_ < interval_) return;
  report_({.done_bytes = done_bytes,
           .total_bytes = total_bytes,
           .percent = total_bytes > 0
                          ? 100 * static_cast<double>(done_bytes) / static_cast<double>(total_bytes)
                          : 100,
           .bytes_per_second =
               static_cast<double>(done_bytes - last_bytes_) / absl::ToDoubleSeconds(now - last_)});
  last_ = now;
  last_bytes_ = done_bytes;
}

}  // namespace lynx::node
