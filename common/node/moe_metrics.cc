#include "common/node/moe_metrics.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/model/model_spec.h"
#include "common/telemetry/buckets.h"

namespace lynx::node {
namespace {

using telemetry::Counter;
using telemetry::Histogram;
using telemetry::Registry;

// Indices of bypass_.
enum Reason {
  kPhase,
  kBatchOfOne,
  kKEqualsN,
  kPolicyOff,
  kGuard,
  kOptOut,
  kQualityBackOff,
  kBadLogits
};
constexpr int kReasons = 8;
constexpr const char* kReasonNames[kReasons] = {"phase",           "batch_of_one", "k_equals_n",
                                                "policy_off",      "guard",        "opt_out",
                                                "quality_backoff", "bad_logits"};

// In the order of moe::Phase.
constexpr const char* kPhaseNames[] = {"decode", "prefill", "mixed"};

Histogram Experts(Registry& registry, const std::string& stage) {
  return registry.AddHistogram(
      "lynx_moe_active_experts",
      "Distinct routed experts of a layer in a step, before and after remapping.",
      telemetry::kExperts, {{"stage", stage}});
}

Counter Plans(Registry& registry, const std::string& phase, const std::string& result) {
  return registry.AddCounter("lynx_moe_plans_total", "Plans: one for each MoE layer and step.",
                             {{"phase", phase}, {"result", result}});
}

Counter LayerExperts(Registry& registry, const std::string& layer, const std::string& stage) {
  return registry.AddCounter("lynx_moe_layer_active_experts_total",
                             "Sum of the distinct routed experts of a layer's plans.",
                             {{"layer", layer}, {"stage", stage}});
}

Counter Assignments(Registry& registry, const std::string& phase) {
  return registry.AddCounter("lynx_moe_assignments_total", "Token-expert assignments.",
                             {{"phase", phase}});
}

Counter Remapped(Registry& registry, const std::string& phase) {
  return registry.AddCounter("lynx_moe_remapped_assignments_total",
                             "Assignments to an expert that exact routing had not chosen.",
                             {{"phase", phase}});
}

telemetry::Gauge Imbalance(Registry& registry, const std::string& stage) {
  telemetry::Gauge gauge = registry.AddGauge(
      "lynx_moe_rank_imbalance_ratio",
      "Active experts of the rank that has most over the mean of all ranks, over the layers of the "
      "last step, before and after remapping.",
      {{"stage", stage}});
  gauge.Set(1);
  return gauge;
}

// Of the plans of a step.
struct Spread {
  int64_t most = 0;  // Of each plan's fullest rank, times its ranks.
  int64_t all = 0;

  void Add(int32_t ranks, int32_t rank_experts, int32_t experts) {
    if (ranks == 0) return;
    most += int64_t{ranks} * rank_experts;
    all += experts;
  }
  void SetRatio(telemetry::Gauge& gauge) const {
    if (all > 0) gauge.Set(static_cast<double>(most) / static_cast<double>(all));
  }
};

std::string Count(int32_t value) {
  return value == moe::Policy::kUnset       ? "-"
         : value == moe::Policy::kUnbounded ? "none"
                                            : absl::StrCat(value);
}

// The canonical text after the name: it tells all policies of a name apart.
std::string Parameters(const moe::Policy& policy) {
  const std::string text = moe::ToString(policy);
  const size_t colon = text.find(':');
  return colon == std::string::npos ? "-" : text.substr(colon + 1);
}

// "-": the policy has no such parameter.
telemetry::Labels PolicyLabels(const moe::Policy& policy) {
  return {{"policy", std::string(moe::KindName(policy.kind))},
          {"alpha", policy.alpha > 0 ? absl::StrCat(policy.alpha) : "-"},
          {"beta", Count(policy.beta)},
          {"floor", Count(policy.floor)},
          {"parameters", Parameters(policy)}};
}

}  // namespace

MoeMetrics::MoeMetrics(Registry& registry, const model::ModelSpec& spec, const moe::Policy& policy)
    : top_k_(spec.experts_per_token),
      experts_before_(Experts(registry, "before")),
      experts_after_(Experts(registry, "after")),
      prefill_assignments_(Assignments(registry, "prefill")),
      decode_assignments_(Assignments(registry, "decode")),
      decode_remapped_(Remapped(registry, "decode")),
      bytes_read_(registry.AddCounter("lynx_moe_expert_weight_read_bytes_total",
                                      "Bytes of routed experts' weights that steps read.")),
      bytes_saved_(
          registry.AddCounter("lynx_moe_expert_weight_saved_bytes_total",
                              "Bytes of routed experts' weights that remapping left unread.")),
      plan_seconds_(registry.AddHistogram("lynx_moe_plan_duration_seconds",
                                          "Time to make the plan of a layer in a step.",
                                          telemetry::kPlanSeconds)),
      kept_mass_(registry.AddHistogram(
          "lynx_moe_kept_gate_mass_ratio",
          "Gate mass that the worst row of an applied plan kept of its exact one.",
          telemetry::kMass)),
      imbalance_before_(Imbalance(registry, "before")),
      imbalance_after_(Imbalance(registry, "after")) {
  Remapped(registry, "prefill");  // And stays 0.
  for (const char* phase : kPhaseNames) {
    applied_.push_back(Plans(registry, phase, "applied"));
    bypassed_.push_back(Plans(registry, phase, "bypassed"));
  }
  for (const char* reason : kReasonNames) {
    bypass_.push_back(registry.AddCounter("lynx_moe_bypass_total", "Why plans were left exact.",
                                          {{"reason", reason}}));
  }
  for (size_t i = 0; i < spec.feed_forward.size(); ++i) {
    const bool moe = spec.feed_forward[i] == model::FeedForwardKind::kMoe;
    layer_index_.push_back(moe ? static_cast<int>(layers_.size()) : -1);
    if (!moe) continue;
    const std::string layer = absl::StrCat(i);
    layers_.push_back({.plans = registry.AddCounter("lynx_moe_layer_plans_total",
                                                    "Plans of a layer.", {{"layer", layer}}),
                       .experts_before = LayerExperts(registry, layer, "before"),
                       .experts_after = LayerExperts(registry, layer, "after"),
                       .remapped = registry.AddCounter(
                           "lynx_moe_layer_remapped_assignments_total",
                           "A layer's part of the remapped assignments.", {{"layer", layer}})});
  }
  registry
      .AddGauge("lynx_moe_policy_info",
                "Constant 1; the labels name the policy of requests that ask for none.",
                PolicyLabels(policy))
      .Set(1);
}

void MoeMetrics::OnStep(const model::StepStats& stats, bool backed_off) {
  const auto reason_of = [&](moe::Bypass bypass) {
    switch (bypass) {
      case moe::Bypass::kPhase:
        return kPhase;
      case moe::Bypass::kBatchOfOne:
        return kBatchOfOne;
      case moe::Bypass::kKEqualsN:
        return kKEqualsN;
      case moe::Bypass::kOptOut:
        return kOptOut;
      case moe::Bypass::kGuard:
        return kGuard;
      case moe::Bypass::kBadLogits:
        return kBadLogits;
      default:
        return backed_off ? kQualityBackOff : kPolicyOff;
    }
  };
  // Summed up first: a step of many layers touches most series once.
  int64_t applied = 0;
  int64_t bypassed[kReasons] = {};
  int64_t assignments = 0;
  int64_t prefill_assignments = 0;
  int64_t remapped = 0;
  Spread before;
  Spread after;
  LYNX_CHECK(stats.plans.size() <= layer_index_.size());
  for (size_t i = 0; i < stats.plans.size(); ++i) {
    if (layer_index_[i] < 0) continue;
    const moe::PlanStats& plan = stats.plans[i];
    Layer& layer = layers_[static_cast<size_t>(layer_index_[i])];
    ++totals_.plans;
    totals_.experts_exact += plan.experts_exact;
    totals_.experts += plan.experts;
    layer.plans.Increment();
    layer.experts_before.Increment(plan.experts_exact);
    layer.experts_after.Increment(plan.experts);
    if (plan.remapped > 0) layer.remapped.Increment(plan.remapped);
    experts_before_.Observe(plan.experts_exact);
    experts_after_.Observe(plan.experts);
    plan_seconds_.Observe(static_cast<double>(stats.plan_seconds[i]));
    if (plan.bypass == moe::Bypass::kNone) {
      ++applied;
      kept_mass_.Observe(static_cast<double>(plan.kept_mass_min));
    } else {
      ++bypassed[reason_of(plan.bypass)];
    }
    before.Add(plan.ranks, plan.rank_experts_exact, plan.experts_exact);
    after.Add(plan.ranks, plan.rank_experts, plan.experts);
    assignments += plan.assignments;
    remapped += plan.remapped;
    // Prompt rows keep their whole top-k in every plan: what was cut or moved was decode's.
    prefill_assignments += int64_t{stats.prefill_rows} * top_k_;
  }
  const auto phase = static_cast<size_t>(stats.phase);
  if (applied > 0) applied_[phase].Increment(static_cast<double>(applied));
  for (int reason = 0; reason < kReasons; ++reason) {
    if (bypassed[reason] == 0) continue;
    bypass_[static_cast<size_t>(reason)].Increment(static_cast<double>(bypassed[reason]));
    bypassed_[phase].Increment(static_cast<double>(bypassed[reason]));
  }
  prefill_assignments_.Increment(static_cast<double>(prefill_assignments));
  decode_assignments_.Increment(static_cast<double>(assignments - prefill_assignments));
  decode_remapped_.Increment(static_cast<double>(remapped));
  bytes_read_.Increment(static_cast<double>(stats.expert_bytes_read));
  bytes_saved_.Increment(static_cast<double>(stats.expert_bytes_saved));
  before.SetRatio(imbalance_before_);
  after.SetRatio(imbalance_after_);
}

}  // namespace lynx::node
