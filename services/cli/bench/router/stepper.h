#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "absl/time/time.h"
#include "common/concurrency/event_loop.h"

namespace lynx::cli {

// The steps of so many decode nodes: each of `groups` groups steps once in a period, the groups one
// after the other at equal distances. A step that comes late does not delay those after it.
//
// On the loop, as its calls; destroyed there or once the loop has stopped.
class Stepper {
 public:
  using Step = std::function<void(int32_t group)>;

  Stepper(EventLoop& loop, int32_t groups, absl::Duration period, Step step);
  ~Stepper();
  Stepper(const Stepper&) = delete;
  Stepper& operator=(const Stepper&) = delete;

  void Start();
  void Stop();

 private:
  void Arm(int32_t group);

  EventLoop& loop_;
  const absl::Duration period_;
  const Step step_;
  struct Group {
    absl::Time due;
    TimerId timer = 0;
  };
  std::vector<Group> groups_;
};

}  // namespace lynx::cli
