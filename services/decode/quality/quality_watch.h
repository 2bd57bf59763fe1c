#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/engine/engine.h"
#include "common/engine/shadow.h"
#include "common/model/model_runner.h"
#include "common/moe/policy.h"
#include "common/moe/policy_controller.h"
#include "common/moe/quality_guard.h"
#include "common/telemetry/metrics.h"

namespace lynx::decode {

// Watches what lossy policies do to a node's answers: has a share of the steps compared with the
// other plan, takes the policies away while the quality guard has backed off, moves the policy
// `auto`, and exports lynx_quality_* (docs/metrics.md).
//
// It guards every lossy row, those too whose request has named its policy: what the operator allows
// is a choice of speed, not of harm. Exact rows are never touched, nor any bit of theirs.
//
// One thread: the node's loop. BeginStep and EndStep alternate; the step between them may run
// elsewhere.
class QualityWatch {
 public:
  struct Options {
    // Share of the steps with lossy rows that are compared, [0, 1]. 0: no guard.
    double share = 0.01;
    int32_t rows = 4;                       // > 0: at most so many rows of a step are compared.
    moe::QualityGuard::Options guard = {};  // `enabled` follows from the share.
    // What `auto` moves along, from exact to the most aggressive (moe::MakePolicyLadder); empty:
    // the node has no `auto`.
    std::vector<moe::Policy> ladder = {};
    absl::Duration step_target = absl::ZeroDuration();  // Of `auto`; zero: none.
  };

  // `registry` outlives this.
  QualityWatch(const Options& options, int32_t vocab_size, telemetry::Registry& registry);

  // What `auto` stands for in the next step; exact, too, is a policy here. Null: there is no
  // `auto`. The policy lives as long as this object. A step's time moves `auto` only where rows
  // have it.
  const moe::Policy* AutoPolicy() const;

  // Ready for a step of `items`, which carry the policies they would have: in back-off these are
  // taken away. The result, unless null, is to go with the step.
  engine::Shadow* BeginStep(std::span<engine::WorkItem> items);
  // Policies were taken away in the last BeginStep.
  bool took_policies() const { return took_policies_; }

  // What came of the step: its status; if OK its results, one an item, and its statistics.
  void EndStep(const absl::Status& status, std::span<const engine::ItemResult> results,
               const model::StepStats& stats, absl::Duration took, absl::Time now);

  moe::QualityGuard::State state() const { return guard_.state(); }

 private:
  struct Metrics {
    explicit Metrics(telemetry::Registry& registry);
    telemetry::Counter samples_ok;
    telemetry::Counter samples_breach;
    telemetry::Counter samples_skipped;
    telemetry::Histogram kl;
    telemetry::Counter top1_agrees;
    telemetry::Counter top1_differs;
    telemetry::Gauge states[3];
    telemetry::Counter trips[4];
    telemetry::Gauge rung;
  };

  bool SampleThisStep();
  void ChooseRows();
  bool IsAuto(const moe::Policy* policy) const;
  void OnCompared(absl::Time now);
  void OnSuspects(std::span<const engine::ItemResult> results, absl::Time now);
  void OnChange(moe::QualityGuard::Change change);
  void ShowState();

  const Options options_;
  moe::QualityGuard guard_;
  std::optional<moe::PolicyController> controller_;
  engine::Shadow shadow_;
  Metrics metrics_;
  double due_ = 0;     // Steps to be compared.
  size_t cursor_ = 0;  // Takes turns among lossy rows.

  // Of the running step.
  std::vector<const moe::Policy*> wanted_;  // An item; null: exact.
  std::vector<int32_t> lossy_;              // Items with a policy.
  std::vector<int32_t> chosen_;
  bool took_policies_ = false;
  bool sampled_ = false;
  bool plain_ = false;  // No row of it is recomputed.
  bool has_auto_ = false;
  std::vector<moe::QualitySample> step_samples_;
};

}  // namespace lynx::decode
