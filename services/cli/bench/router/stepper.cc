#include "services/cli/bench/router/stepper.h"

#include <utility>

namespace lynx::cli {

Stepper::Stepper(EventLoop& loop, int32_t groups, absl::Duration period, Step step)
    : loop_(loop), period_(period), step_(std::move(step)), groups_(static_cast<size_t>(groups)) {}

Stepper::~Stepper() { Stop(); }

void Stepper::Start() {
  const absl::Time now = loop_.Now();
  for (size_t i = 0; i < groups_.size(); ++i) {
    groups_[i].due = now + period_ * static_cast<double>(i) / static_cast<double>(groups_.size());
    Arm(static_cast<int32_t>(i));
  }
}

void Stepper::Stop() {
  for (Group& group : groups_) loop_.CancelTimer(std::exchange(group.timer, 0));
}

void Stepper::Arm(int32_t group) {
  Group& of = groups_[static_cast<size_t>(group)];
  of.timer = loop_.RunAfter(of.due - loop_.Now(), [this, group] {
    groups_[static_cast<size_t>(group)].due += period_;
    Arm(group);
    step_(group);
  });
}

}  // namespace lynx::cli
