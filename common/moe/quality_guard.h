#pragma once

#include <cstdint>
#include <vector>

#include "absl/time/time.h"

namespace lynx::moe {

// What comparing one token's two distributions, the exact one and the policy's, has found.
struct QualitySample {
  double kl_nats = 0;     // KL(exact || policy) of the next-token distribution; finite, >= 0.
  bool same_top1 = true;  // Both have the same likeliest token.
  double kept_mass = 1;  // Gate mass the policy's plans kept in that step: mean of rows and layers.
};

// How much harm a policy may do on average.
struct QualityBudget {
  double max_kl_nats = 0.05;  // > 0
  double min_top1 = 0;        // Share of tokens with the same likeliest one, [0, 1); 0: not judged.
  double min_kept_mass = 0;   // [0, 1); 0: not judged.
};

enum class QualityLoss : uint8_t { kKl, kTop1, kKeptMass };

// How much of a budget is used: 1 is all of it.
struct BudgetUse {
  double share = 0;
  QualityLoss largest = QualityLoss::kKl;  // What uses most of it.
};

// `samples` must not be empty. One sample's divergence counts for at most kMaxSampleBudgets
// budgets, so that no single token, however unlucky, decides about a window.
inline constexpr double kMaxSampleBudgets = 16;
BudgetUse UseOf(const QualityBudget& budget, const std::vector<QualitySample>& samples);

// Turns lossy policies off when they do more harm than their budget allows, and on again when they
// no longer would.
//
// Active: samples of the running policy come in. When the last `window` of them, however old, use
// more than the budget, it trips. A distribution that is not finite trips at once.
// Back-off: the node runs exactly; samples are probes of what the policy would have done. It
// returns once it has held for the hold time and a whole window of probes uses at most
// `return_share` of the budget. The hold time doubles with each trip within `max_hold` of the last
// return, up to `max_hold`; a later trip starts again at `hold`.
//
// States change with samples alone, never by the mere passing of time: a node without rows to
// compare keeps its state. So a policy that harms every token runs for at most one window of
// samples before the node is exact.
//
// Pure: time is passed in and must not go backwards. One thread at a time.
class QualityGuard {
 public:
  enum class State : uint8_t { kOff, kActive, kBackoff };
  enum class Change : uint8_t { kNone, kTripped, kReturned };
  enum class Reason : uint8_t { kKl, kTop1, kKeptMass, kNan };

  struct Options {
    bool enabled = true;  // False: kOff for good, and samples are ignored.
    QualityBudget budget = {};
    int32_t window = 64;        // > 0: samples.
    double return_share = 0.8;  // (0, 1]
    absl::Duration hold = absl::Minutes(1);
    absl::Duration max_hold = absl::Minutes(16);  // >= hold
  };

  explicit QualityGuard(const Options& options);

  Change OnSample(const QualitySample& sample, absl::Time now);
  // The policy's distribution was not finite where the exact one was, or is not known to be.
  Change OnBroken(absl::Time now);

  State state() const { return state_; }
  Reason reason() const { return reason_; }           // Of the last trip.
  absl::Duration hold_time() const { return hold_; }  // Of the present or last back-off.
  const Options& options() const { return options_; }

 private:
  Change Trip(Reason reason, absl::Time now);

  const Options options_;
  State state_;
  Reason reason_ = Reason::kKl;
  absl::Duration hold_ = absl::ZeroDuration();
  absl::Time tripped_ = absl::InfinitePast();
  absl::Time returned_ = absl::InfinitePast();
  std::vector<QualitySample> samples_;  // The window, oldest first.
};

}  // namespace lynx::moe
