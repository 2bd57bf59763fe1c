#pragma once

#include <cstdint>

#include "absl/time/time.h"
#include "common/base/step_time.h"

namespace lynx::decode {

// What it costs to preempt a sequence in either way, as this node measured it.
struct SwapCost {
  double bytes_per_second = 0;  // Of a copy; 0: none was made yet.

  // Whether to copy so many bytes out, and in again, costs less time than to compute so many
  // tokens again. Their rows share steps with others, so only what a row adds counts. Before the
  // first copy: yes, to learn it; before the first steps are known: no.
  bool CopyIsCheaper(const StepTime& step_time, int64_t bytes, int64_t tokens) const {
    if (!step_time.known()) return false;
    if (bytes_per_second <= 0) return true;
    const absl::Duration copies = absl::Seconds(2 * static_cast<double>(bytes) / bytes_per_second);
    return copies < step_time.per_row * tokens;
  }

  void OnCopy(int64_t bytes, absl::Duration took) {
    // The clock may be too coarse for a small copy, which then says nothing.
    if (took <= absl::ZeroDuration()) return;
    const double rate = static_cast<double>(bytes) / absl::ToDoubleSeconds(took);
    bytes_per_second = bytes_per_second > 0 ? 0.8 * bytes_per_second + 0.2 * rate : rate;
  }
};

}  // namespace lynx::decode
