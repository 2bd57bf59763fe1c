#include "common/proto/step_time_wire.h"

namespace lynx {

void StepTimeToWire(const StepTime& time, proto::StepTime& wire) {
  wire.set_base_seconds(absl::ToDoubleSeconds(time.base));
  wire.set_row_seconds(absl::ToDoubleSeconds(time.per_row));
  wire.set_max_rows(time.max_rows);
}

StepTime StepTimeFromWire(const proto::StepTime& wire) {
  // False for NaN, too.
  const auto sane = [](double seconds) { return seconds >= 0 && seconds <= 3600; };
  if (!sane(wire.base_seconds()) || !sane(wire.row_seconds()) || wire.max_rows() < 0) return {};
  return {.base = absl::Seconds(wire.base_seconds()),
          .per_row = absl::Seconds(wire.row_seconds()),
          .max_rows = wire.max_rows()};
}

}  // namespace lynx
