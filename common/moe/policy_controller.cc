#include "common/moe/policy_controller.h"

#include <algorithm>

#include "common/base/check.h"

namespace lynx::moe {

PolicyController::PolicyController(const Options& options)
    : options_(options),
      patience_(options.patience),
      ceiling_(options.rungs - 1),
      closed_for_(options.closed) {
  LYNX_CHECK(options.rungs >= 2 && options.interval_steps > 0 && options.evidence > 0 &&
             options.impatience > 0 && options.patience > 0 && options.closed > 0 &&
             options.budget.max_kl_nats > 0);
  batch_.reserve(static_cast<size_t>(options.evidence));
}

void PolicyController::MoveTo(int32_t rung) {
  rung_ = rung;
  batch_.clear();
  interval_steps_ = 0;
  fast_intervals_ = 0;
  slow_intervals_ = 0;
  relaxed_ = false;
}

void PolicyController::CloseAbove(int32_t rung) {
  // While closed, a further failure is no new mistake.
  if (closed_intervals_ == 0 && failed_before_) {
    closed_for_ = std::min(2 * closed_for_, options_.max_closed);
  }
  failed_before_ = true;
  ceiling_ = rung;
  closed_intervals_ = closed_for_;
}

void PolicyController::OnStep(absl::Duration step_time, absl::Time now) {
  if (backed_off_) return;
  if (interval_steps_ == 0) {
    interval_began_ = now - step_time;
    interval_time_ = absl::ZeroDuration();
  }
  interval_time_ += step_time;
  ++interval_steps_;
  if (interval_steps_ < options_.interval_steps || now - interval_began_ < options_.interval) {
    return;
  }
  const double mean = absl::ToDoubleSeconds(interval_time_) / interval_steps_;
  interval_steps_ = 0;
  const double target = absl::ToDoubleSeconds(options_.target);
  OnInterval(target > 0 ? mean / target : 2);
}

// `time`: the mean step's, in targets.
void PolicyController::OnInterval(double time) {
  if (closed_intervals_ > 0) --closed_intervals_;
  slow_intervals_ = time > 1 ? slow_intervals_ + 1 : 0;
  fast_intervals_ = time < 1 - options_.slack ? fast_intervals_ + 1 : 0;
  if (slow_intervals_ >= options_.impatience) {
    if (relaxed_) {
      patience_ = std::min(2 * patience_, options_.max_patience);
      relaxed_ = false;
    }
    const int32_t last = closed_intervals_ > 0 ? ceiling_ : options_.rungs - 1;
    if (rung_ < last && proven_ >= rung_) MoveTo(rung_ + 1);
    return;
  }
  if (rung_ == 0 || fast_intervals_ < patience_) return;
  // Two in a row: the load has really fallen.
  if (relaxed_) patience_ = options_.patience;
  MoveTo(rung_ - 1);
  relaxed_ = true;
}

void PolicyController::OnSample(const QualitySample& sample) {
  if (rung_ == 0) return;
  batch_.push_back(sample);
  if (batch_.size() < static_cast<size_t>(options_.evidence)) return;
  const double use = UseOf(options_.budget, batch_).share;
  batch_.clear();
  if (use <= options_.headroom) {
    if (rung_ > ceiling_) closed_for_ = std::max(closed_for_ / 2, options_.closed);
    proven_ = std::max(proven_, rung_);
    return;
  }
  proven_ = std::min(proven_, rung_ - 1);
  if (use <= 1 || (backed_off_ && rung_ == 1)) return;
  MoveTo(rung_ - 1);
  CloseAbove(rung_);
}

void PolicyController::OnGuardTripped() {
  was_exact_ = rung_ == 0;
  MoveTo(std::max(1, rung_ / 2));
  proven_ = std::min(proven_, rung_ - 1);
  if (!was_exact_) CloseAbove(rung_);
  backed_off_ = true;
}

void PolicyController::OnGuardReturned() {
  backed_off_ = false;
  proven_ = std::max(proven_, rung_);
  if (was_exact_) MoveTo(0);
}

}  // namespace lynx::moe
