#include "common/node/step_time_fit.h"

#include <algorithm>

namespace lynx::node {

void StepTimeFit::Add(int64_t rows, absl::Duration took) {
  if (rows <= 0) return;
  const auto x = static_cast<double>(rows);
  const double y = absl::ToDoubleSeconds(took);
  n_ = n_ * keep_ + 1;
  x_ = x_ * keep_ + x;
  y_ = y_ * keep_ + y;
  xx_ = xx_ * keep_ + x * x;
  xy_ = xy_ * keep_ + x * y;
}

StepTime StepTimeFit::Get() const {
  StepTime time = {.max_rows = max_rows_};
  if (n_ == 0) return time;
  // Both times n^2: variance of the rows, and their covariance with the seconds.
  const double variance = n_ * xx_ - x_ * x_;
  const double covariance = n_ * xy_ - x_ * y_;
  double slope = y_ / x_;
  double base = 0;
  // Rows that differ by less than a hundredth say nothing about what one more costs.
  if (variance > 1e-4 * x_ * x_) {
    slope = std::max(covariance / variance, 0.0);
    base = (y_ - slope * x_) / n_;
    if (base < 0) {
      base = 0;
      slope = y_ / x_;
    }
  }
  time.base = absl::Seconds(base);
  time.per_row = absl::Seconds(slope);
  return time;
}

}  // namespace lynx::node
