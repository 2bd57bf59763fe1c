#include "common/moe/quality_guard.h"

#include <algorithm>
#include <limits>

#include "common/base/check.h"

namespace lynx::moe {
namespace {

// `lost` of `allowed`, both shares of 1.
double Used(double lost, double allowed) {
  if (lost <= 0) return 0;
  return allowed > 0 ? lost / allowed : std::numeric_limits<double>::infinity();
}

QualityGuard::Reason ReasonOf(QualityLoss loss) {
  switch (loss) {
    case QualityLoss::kKl:
      return QualityGuard::Reason::kKl;
    case QualityLoss::kTop1:
      return QualityGuard::Reason::kTop1;
    case QualityLoss::kKeptMass:
      return QualityGuard::Reason::kKeptMass;
  }
  LYNX_CHECK(false);
}

}  // namespace

BudgetUse UseOf(const QualityBudget& budget, const std::vector<QualitySample>& samples) {
  LYNX_CHECK(!samples.empty());
  const auto count = static_cast<double>(samples.size());
  double kl = 0;
  double changed = 0;
  double lost_mass = 0;
  for (const QualitySample& sample : samples) {
    kl += std::min(sample.kl_nats, kMaxSampleBudgets * budget.max_kl_nats) / count;
    changed += (sample.same_top1 ? 0 : 1) / count;
    lost_mass += (1 - sample.kept_mass) / count;
  }
  BudgetUse use{.share = kl / budget.max_kl_nats};
  const auto consider = [&](double share, QualityLoss loss) {
    if (share > use.share) use = {.share = share, .largest = loss};
  };
  if (budget.min_top1 > 0) consider(Used(changed, 1 - budget.min_top1), QualityLoss::kTop1);
  if (budget.min_kept_mass > 0) {
    consider(Used(lost_mass, 1 - budget.min_kept_mass), QualityLoss::kKeptMass);
  }
  return use;
}

QualityGuard::QualityGuard(const Options& options)
    : options_(options), state_(options.enabled ? State::kActive : State::kOff) {
  LYNX_CHECK(options.budget.max_kl_nats > 0 && options.window > 0 && options.return_share > 0 &&
             options.hold >= absl::ZeroDuration() && options.max_hold >= options.hold);
  samples_.reserve(static_cast<size_t>(options.window));
}

QualityGuard::Change QualityGuard::OnSample(const QualitySample& sample, absl::Time now) {
  if (state_ == State::kOff) return Change::kNone;
  const auto window = static_cast<size_t>(options_.window);
  if (samples_.size() == window) samples_.erase(samples_.begin());
  samples_.push_back(sample);
  if (samples_.size() < window) return Change::kNone;

  const BudgetUse use = UseOf(options_.budget, samples_);
  if (state_ == State::kActive) {
    return use.share > 1 ? Trip(ReasonOf(use.largest), now) : Change::kNone;
  }
  if (now - tripped_ < hold_ || use.share > options_.return_share) return Change::kNone;
  state_ = State::kActive;
  returned_ = now;
  return Change::kReturned;
}

QualityGuard::Change QualityGuard::OnBroken(absl::Time now) {
  switch (state_) {
    case State::kOff:
      return Change::kNone;
    case State::kActive:
      return Trip(Reason::kNan, now);
    case State::kBackoff:
      // Nothing gathered so far speaks for the policy any more.
      samples_.clear();
      return Change::kNone;
  }
  LYNX_CHECK(false);
}

QualityGuard::Change QualityGuard::Trip(Reason reason, absl::Time now) {
  const bool again = now - returned_ <= options_.max_hold;
  hold_ = again ? std::min(2 * hold_, options_.max_hold) : options_.hold;
  state_ = State::kBackoff;
  reason_ = reason;
  tripped_ = now;
  samples_.clear();
  return Change::kTripped;
}

}  // namespace lynx::moe
