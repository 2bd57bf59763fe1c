#pragma once

#include <cstdint>

#include "absl/time/time.h"
#include "common/base/step_time.h"

namespace lynx::node {

// Learns what a node's steps cost from those it ran: a least-squares line through rows and times,
// in which older steps count less and less. Neither part of it is ever negative, and as long as all
// steps have been alike it is the one through the origin, which promises least for smaller ones.
//
// Not thread-safe.
class StepTimeFit {
 public:
  // After `memory` more steps an old one counts a third.
  explicit StepTimeFit(int32_t max_rows, double memory = 200)
      : max_rows_(max_rows), keep_(1 - 1 / memory) {}

  void Add(int64_t rows, absl::Duration took);
  StepTime Get() const;

 private:
  const int32_t max_rows_;
  const double keep_;
  // Decayed sums over steps: their number, and of rows and seconds.
  double n_ = 0;
  double x_ = 0;
  double y_ = 0;
  double xx_ = 0;
  double xy_ = 0;
};

}  // namespace lynx::node
