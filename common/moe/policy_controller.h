#pragma once

#include <cstdint>
#include <vector>

#include "absl/time/time.h"
#include "common/moe/quality_guard.h"

namespace lynx::moe {

// The controller behind the policy `auto`: moves along a ladder of policies, from exact at rung 0
// to the most aggressive at the last, so that steps meet a target time while quality stays within
// its budget.
//
// Signals.
//   Step time: of steps made under the present rung alone (no prefill rows, no shadow). Judged by
//     its mean over an interval of at least `interval` and `interval_steps` steps.
//   Quality: samples of the present rung, judged in batches of `evidence`.
// Rules. Quality goes before time, and every rule moves one rung.
//   1. A batch over its budget: down at once, and the rungs above are closed for `closed`
//      intervals: twice as long, up to `max_closed`, each time they fail again after that, and half
//      as long each time one of them proves itself.
//   2. Mean step time over the target for `impatience` intervals in a row: up, if the present rung
//      has proven itself (its last batch used at most `headroom` of the budget; exact always has)
//      and the next is not closed.
//   3. Mean step time under (1 - slack) of the target for `patience` intervals in a row: down, as
//      quality is to be had for nothing. When that turns out to have been a mistake (rule 2 takes
//      the step back next), the patience doubles, up to `max_patience`.
// Without a target steps are always too slow: the controller uses what quality the budget allows.
//
// Why it does not oscillate: up and down have different thresholds (slack, headroom); a move that
// had to be taken back makes the next one like it twice as slow, so under a steady load the number
// of turns grows with the logarithm of time.
//
// Pure: time is passed in. One thread at a time.
class PolicyController {
 public:
  struct Options {
    int32_t rungs = 9;                             // >= 2
    absl::Duration target = absl::ZeroDuration();  // Of a step; zero: none.
    QualityBudget budget = {};
    absl::Duration interval = absl::Seconds(1);
    int32_t interval_steps = 16;  // > 0
    double slack = 0.15;          // [0, 1)
    double headroom = 0.8;        // (0, 1]
    int32_t evidence = 32;        // > 0: samples.
    int32_t impatience = 2;       // > 0: intervals.
    int32_t patience = 5;         // > 0: intervals.
    int32_t max_patience = 300;
    int32_t closed = 60;  // > 0: intervals.
    int32_t max_closed = 960;
  };

  explicit PolicyController(const Options& options);

  // [0, rungs): the policy that rows without one of their own are to have now. Starts at 0.
  int32_t rung() const { return rung_; }

  void OnStep(absl::Duration step_time, absl::Time now);
  void OnSample(const QualitySample& sample);
  // The guard has tripped: the node is exact, samples are probes of rung(), and no step times come
  // until it returns. Halves the rung, but not to exact: a probe of that would prove nothing. At
  // exact the harm was not of this policy: rung 1 is probed, and exact resumed.
  void OnGuardTripped();
  void OnGuardReturned();

 private:
  void MoveTo(int32_t rung);
  void CloseAbove(int32_t rung);
  void OnInterval(double time);

  const Options options_;
  int32_t rung_ = 0;
  int32_t proven_ = 0;       // The highest rung known to be within the budget's headroom.
  bool backed_off_ = false;  // By the guard ...
  bool was_exact_ = false;   // ... while at rung 0.

  // Of the running interval.
  absl::Time interval_began_ = absl::InfinitePast();
  absl::Duration interval_time_ = absl::ZeroDuration();
  int32_t interval_steps_ = 0;

  std::vector<QualitySample> batch_;  // Samples of the present rung.

  bool relaxed_ = false;  // The last move was rule 3.
  int32_t patience_;
  int32_t fast_intervals_ = 0;  // In a row.
  int32_t slow_intervals_ = 0;  // In a row.

  int32_t ceiling_;               // Rungs above it failed last, and are closed ...
  int32_t closed_intervals_ = 0;  // ... for so many intervals more.
  int32_t closed_for_;            // How long they are closed at a time.
  bool failed_before_ = false;
};

}  // namespace lynx::moe
