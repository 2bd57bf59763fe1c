#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "common/moe/routing_plan.h"

namespace lynx::cli {

// What the routing plans of many steps did.
class RoutingTally {
 public:
  struct Layer {
    int32_t layer = 0;
    double experts_exact = 0;  // Distinct experts a step, mean.
    double experts = 0;
    double kept_mass_mean = 1;
  };

  // One step: its plans by layer (model::StepStats::plans). Dense layers count for nothing.
  void Add(std::span<const moe::PlanStats> plans);

  int64_t steps() const { return steps_; }
  // Means over steps and MoE layers.
  double experts_exact() const;
  double experts() const;
  double kept_mass_mean() const;
  // Of the worst row in any step and layer.
  double kept_mass_min() const { return kept_mass_min_; }
  // Share of plans that were exact because the policy would have taken more experts.
  double guarded_share() const;
  std::vector<Layer> layers() const;

 private:
  struct Sums {
    double experts_exact = 0;
    double experts = 0;
    double kept_mass = 0;
    int64_t plans = 0;
    int64_t guarded = 0;
  };
  Sums Total() const;

  int64_t steps_ = 0;
  double kept_mass_min_ = 1;
  std::vector<Sums> sums_;  // By layer.
};

}  // namespace lynx::cli
