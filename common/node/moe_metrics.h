#pragma once

#include <cstdint>
#include <vector>

#include "common/model/model_runner.h"
#include "common/moe/policy.h"
#include "common/moe/routing_plan.h"
#include "common/telemetry/metrics.h"

namespace lynx::node {

// lynx_moe_*: what the plans of a node did (docs/metrics.md). All series exist from the start;
// their labels are the model's layers and fixed words.
//
// One thread: the node's loop, between steps or on a copy of a step's statistics.
class MoeMetrics {
 public:
  // `policy` is what the node applies to requests that ask for none. `registry` outlives this.
  MoeMetrics(telemetry::Registry& registry, const model::ModelSpec& spec,
             const moe::Policy& policy);

  // `stats` are those of a completed step. `backed_off`: the quality guard had made rows exact that
  // would have had a lossy policy.
  void OnStep(const model::StepStats& stats, bool backed_off = false);

  // Over all plans so far: how many, their distinct experts under exact routing, and those read.
  struct Totals {
    int64_t plans = 0;
    int64_t experts_exact = 0;
    int64_t experts = 0;
  };
  const Totals& totals() const { return totals_; }

 private:
  struct Layer {
    telemetry::Counter plans;
    telemetry::Counter experts_before;
    telemetry::Counter experts_after;
    telemetry::Counter remapped;
  };

  const int32_t top_k_;
  Totals totals_;
  std::vector<telemetry::Counter> applied_;   // By moe::Phase.
  std::vector<telemetry::Counter> bypassed_;  // By moe::Phase.
  std::vector<telemetry::Counter> bypass_;    // By reason.
  telemetry::Histogram experts_before_;
  telemetry::Histogram experts_after_;
  std::vector<int> layer_index_;  // Of each of the model's layers in layers_; -1: dense.
  std::vector<Layer> layers_;
  telemetry::Counter prefill_assignments_;
  telemetry::Counter decode_assignments_;
  telemetry::Counter decode_remapped_;
  telemetry::Counter bytes_read_;
  telemetry::Counter bytes_saved_;
  telemetry::Histogram plan_seconds_;
  telemetry::Histogram kept_mass_;
  telemetry::Gauge imbalance_before_;
  telemetry::Gauge imbalance_after_;
};

}  // namespace lynx::node
