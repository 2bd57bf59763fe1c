#include "services/decode/quality/quality_watch.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/base/check.h"
#include "common/telemetry/buckets.h"
#include "common/telemetry/log.h"

namespace lynx::decode {
namespace {

using moe::QualityGuard;
using Kind = engine::Comparison::Kind;

constexpr const char* kStateNames[] = {"off", "active", "backoff"};  // Of QualityGuard::State.
constexpr const char* kReasonNames[] = {"kl", "top1", "kept_mass", "nan"};  // Of its Reason.

QualityGuard::Options GuardOptions(const QualityWatch::Options& options) {
  QualityGuard::Options guard = options.guard;
  guard.enabled = options.share > 0;
  return guard;
}

telemetry::Counter Samples(telemetry::Registry& registry, const std::string& result) {
  return registry.AddCounter("lynx_quality_samples_total",
                             "Steps chosen for a comparison with the other plan.",
                             {{"result", result}});
}

telemetry::Counter Top1(telemetry::Registry& registry, const std::string& agree) {
  return registry.AddCounter("lynx_quality_top1_total",
                             "Compared rows, by whether both plans have the same likeliest token.",
                             {{"agree", agree}});
}

telemetry::Gauge State(telemetry::Registry& registry, const std::string& state) {
  return registry.AddGauge("lynx_quality_guard_state",
                           "1 for the quality guard's present state, 0 for the others.",
                           {{"state", state}});
}

telemetry::Counter Trips(telemetry::Registry& registry, const std::string& reason) {
  return registry.AddCounter("lynx_quality_guard_trips_total",
                             "Times the guard switched lossy policies off.", {{"reason", reason}});
}

}  // namespace

QualityWatch::Metrics::Metrics(telemetry::Registry& registry)
    : samples_ok(Samples(registry, "ok")),
      samples_breach(Samples(registry, "breach")),
      samples_skipped(Samples(registry, "skipped")),
      kl(registry.AddHistogram("lynx_quality_kl_divergence_nats",
                               "KL(exact || policy) of the next token in compared rows.",
                               telemetry::kKlNats)),
      top1_agrees(Top1(registry, "true")),
      top1_differs(Top1(registry, "false")),
      states{State(registry, kStateNames[0]), State(registry, kStateNames[1]),
             State(registry, kStateNames[2])},
      trips{Trips(registry, kReasonNames[0]), Trips(registry, kReasonNames[1]),
            Trips(registry, kReasonNames[2]), Trips(registry, kReasonNames[3])},
      rung(registry.AddGauge("lynx_moe_auto_rung",
                             "Where on its ladder the policy auto is; 0 is exact.")) {}

QualityWatch::QualityWatch(const Options& options, int32_t vocab_size,
                           telemetry::Registry& registry)
    : options_(options),
      guard_(GuardOptions(options)),
      shadow_(vocab_size, options.rows),
      metrics_(registry) {
  LYNX_CHECK(options.share >= 0 && options.share <= 1);
  if (!options.ladder.empty()) {
    // Without comparisons it would not know what it does.
    LYNX_CHECK(options.ladder.size() >= 2 && options.share > 0);
    controller_.emplace(
        moe::PolicyController::Options{.rungs = static_cast<int32_t>(options.ladder.size()),
                                       .target = options.step_target,
                                       .budget = options.guard.budget});
  }
  ShowState();
}

const moe::Policy* QualityWatch::AutoPolicy() const {
  return controller_ ? &options_.ladder[static_cast<size_t>(controller_->rung())] : nullptr;
}

bool QualityWatch::SampleThisStep() {
  if (lossy_.empty()) return false;
  due_ += options_.share;
  if (due_ < 1) return false;
  due_ -= 1;
  return true;
}

void QualityWatch::ChooseRows() {
  const size_t count = std::min(lossy_.size(), static_cast<size_t>(options_.rows));
  chosen_.clear();
  for (size_t i = 0; i < count; ++i) chosen_.push_back(lossy_[(cursor_ + i) % lossy_.size()]);
  cursor_ += count;
  std::sort(chosen_.begin(), chosen_.end());
}

engine::Shadow* QualityWatch::BeginStep(std::span<engine::WorkItem> items) {
  wanted_.clear();
  lossy_.clear();
  plain_ = true;
  has_auto_ = false;
  for (size_t i = 0; i < items.size(); ++i) {
    const moe::Policy* policy = items[i].policy;
    has_auto_ = has_auto_ || IsAuto(policy);
    if (policy != nullptr && !policy->lossy()) policy = nullptr;
    wanted_.push_back(policy);
    if (policy != nullptr) lossy_.push_back(static_cast<int32_t>(i));
    plain_ = plain_ && items[i].tokens == 1;
  }
  took_policies_ = guard_.state() == QualityGuard::State::kBackoff && !lossy_.empty();
  if (took_policies_) {
    for (engine::WorkItem& item : items) item.policy = nullptr;
  }
  sampled_ = SampleThisStep();
  if (!sampled_) return nullptr;
  ChooseRows();
  if (took_policies_) {
    shadow_.CompareWithPolicies(chosen_, wanted_);
  } else {
    shadow_.CompareWithExact(chosen_);
  }
  return &shadow_;
}

void QualityWatch::EndStep(const absl::Status& status, std::span<const engine::ItemResult> results,
                           const model::StepStats& stats, absl::Duration took, absl::Time now) {
  if (sampled_) OnCompared(now);
  if (!status.ok()) return;
  const bool remapped =
      std::any_of(stats.plans.begin(), stats.plans.end(), [](const moe::PlanStats& plan) {
        return plan.experts > 0 && plan.bypass == moe::Bypass::kNone;
      });
  if (remapped && guard_.state() == QualityGuard::State::kActive) OnSuspects(results, now);
  if (controller_) {
    if (has_auto_ && plain_ && !sampled_) controller_->OnStep(took, now);
    metrics_.rung.Set(guard_.state() == QualityGuard::State::kActive ? controller_->rung() : 0);
  }
}

bool QualityWatch::IsAuto(const moe::Policy* policy) const {
  return controller_ && policy >= options_.ladder.data() &&
         policy < options_.ladder.data() + options_.ladder.size();
}

void QualityWatch::OnCompared(absl::Time now) {
  using Outcome = engine::Shadow::Outcome;
  if (shadow_.outcome() == Outcome::kFailed && !absl::IsCancelled(shadow_.status())) {
    telemetry::LogWarning("a step could not be compared",
                          {{"status", std::string(shadow_.status().ToString())}});
  }
  step_samples_.clear();
  bool broken = false;
  auto change = QualityGuard::Change::kNone;
  for (const engine::Shadow::Row& row : shadow_.rows()) {
    if (row.comparison.kind == Kind::kExactBroken) continue;
    if (row.comparison.kind == Kind::kPolicyBroken) {
      broken = true;
      if (change == QualityGuard::Change::kNone) change = guard_.OnBroken(now);
      continue;
    }
    const moe::QualitySample sample{.kl_nats = row.comparison.kl_nats,
                                    .same_top1 = row.comparison.same_top1,
                                    .kept_mass = shadow_.kept_mass()};
    metrics_.kl.Observe(sample.kl_nats);
    (sample.same_top1 ? metrics_.top1_agrees : metrics_.top1_differs).Increment();
    step_samples_.push_back(sample);
    // A sample speaks of the side it was taken on: after a change the rest of the step's are void.
    if (change != QualityGuard::Change::kNone) continue;
    change = guard_.OnSample(sample, now);
    if (IsAuto(wanted_[static_cast<size_t>(row.item)])) controller_->OnSample(sample);
  }
  if (!broken && step_samples_.empty()) {
    metrics_.samples_skipped.Increment();
  } else if (broken || moe::UseOf(options_.guard.budget, step_samples_).share > 1) {
    metrics_.samples_breach.Increment();
  } else {
    metrics_.samples_ok.Increment();
  }
  OnChange(change);
}

// Rows whose logits broke under a policy, which nothing has cleared.
void QualityWatch::OnSuspects(std::span<const engine::ItemResult> results, absl::Time now) {
  for (int32_t item : lossy_) {
    if (!absl::IsInternal(results[static_cast<size_t>(item)].status)) continue;
    const auto rows = sampled_ ? shadow_.rows() : std::span<const engine::Shadow::Row>();
    const bool cleared = std::any_of(rows.begin(), rows.end(), [&](const auto& row) {
      return row.item == item && row.comparison.kind == Kind::kExactBroken;
    });
    if (cleared) continue;
    OnChange(guard_.OnBroken(now));
    return;
  }
}

void QualityWatch::OnChange(QualityGuard::Change change) {
  switch (change) {
    case QualityGuard::Change::kNone:
      return;
    case QualityGuard::Change::kTripped:
      telemetry::LogWarning("quality guard: lossy policies are off",
                            {{"reason", kReasonNames[static_cast<int>(guard_.reason())]},
                             {"for_at_least", absl::FormatDuration(guard_.hold_time())}});
      metrics_.trips[static_cast<int>(guard_.reason())].Increment();
      if (controller_) controller_->OnGuardTripped();
      break;
    case QualityGuard::Change::kReturned:
      telemetry::LogInfo("quality guard: lossy policies are on again");
      if (controller_) controller_->OnGuardReturned();
      break;
  }
  ShowState();
}

void QualityWatch::ShowState() {
  for (int i = 0; i < 3; ++i) metrics_.states[i].Set(i == static_cast<int>(guard_.state()) ? 1 : 0);
}

}  // namespace lynx::decode
