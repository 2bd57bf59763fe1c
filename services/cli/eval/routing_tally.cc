#include "services/cli/eval/routing_tally.h"

#include <algorithm>

namespace lynx::cli {
namespace {

double Ratio(double sum, int64_t count, double none) {
  return count > 0 ? sum / static_cast<double>(count) : none;
}

}  // namespace

void RoutingTally::Add(std::span<const moe::PlanStats> plans) {
  ++steps_;
  sums_.resize(std::max(sums_.size(), plans.size()));
  for (size_t layer = 0; layer < plans.size(); ++layer) {
    const moe::PlanStats& plan = plans[layer];
    if (plan.experts_exact == 0) continue;
    Sums& sums = sums_[layer];
    sums.experts_exact += plan.experts_exact;
    sums.experts += plan.experts;
    sums.kept_mass += plan.kept_mass_mean;
    ++sums.plans;
    if (plan.bypass == moe::Bypass::kGuard) ++sums.guarded;
    kept_mass_min_ = std::min<double>(kept_mass_min_, plan.kept_mass_min);
  }
}

RoutingTally::Sums RoutingTally::Total() const {
  Sums total;
  for (const Sums& sums : sums_) {
    total.experts_exact += sums.experts_exact;
    total.experts += sums.experts;
    total.kept_mass += sums.kept_mass;
    total.plans += sums.plans;
    total.guarded += sums.guarded;
  }
  return total;
}

double RoutingTally::experts_exact() const {
  const Sums total = Total();
  return Ratio(total.experts_exact, total.plans, 0);
}

double RoutingTally::experts() const {
  const Sums total = Total();
  return Ratio(total.experts, total.plans, 0);
}

double RoutingTally::kept_mass_mean() const {
  const Sums total = Total();
  return Ratio(total.kept_mass, total.plans, 1);
}

double RoutingTally::guarded_share() const {
  const Sums total = Total();
  return Ratio(static_cast<double>(total.guarded), total.plans, 0);
}

std::vector<RoutingTally::Layer> RoutingTally::layers() const {
  std::vector<Layer> layers;
  for (size_t layer = 0; layer < sums_.size(); ++layer) {
    const Sums& sums = sums_[layer];
    if (sums.plans == 0) continue;
    layers.push_back({.layer = static_cast<int32_t>(layer),
                      .experts_exact = Ratio(sums.experts_exact, sums.plans, 0),
                      .experts = Ratio(sums.experts, sums.plans, 0),
                      .kept_mass_mean = Ratio(sums.kept_mass, sums.plans, 1)});
  }
  return layers;
}

}  // namespace lynx::cli
