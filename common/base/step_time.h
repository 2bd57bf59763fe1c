#pragma once

#include <cstdint>

#include "absl/time/time.h"

namespace lynx {

// What an engine's steps cost, as its node measures it and its router predicts with it:
// base + per_row * rows. Zero: not measured yet.
struct StepTime {
  absl::Duration base = absl::ZeroDuration();
  absl::Duration per_row = absl::ZeroDuration();
  int32_t max_rows = 0;  // Of one step; 0: no limit is known.

  bool known() const { return base + per_row > absl::ZeroDuration(); }

  // One step of `rows` rows.
  absl::Duration Step(int64_t rows) const { return base + per_row * rows; }

  // As many full steps as `rows` rows take, one after the other.
  absl::Duration Steps(int64_t rows) const {
    if (rows <= 0) return absl::ZeroDuration();
    const int64_t limit = max_rows > 0 ? max_rows : rows;
    return base * ((rows + limit - 1) / limit) + per_row * rows;
  }
};

}  // namespace lynx
