#include "common/moe/planner.h"

#include <cmath>
#include <limits>

namespace lynx::moe {
namespace {

float Rank(float logit) {
  return std::isnan(logit) ? -std::numeric_limits<float>::infinity() : logit;
}

// The ids of the largest logits, in order; ties to the lower id. Insertion into a short sorted
// list.
void TopK(std::span<const float> logits, std::span<int32_t> ids) {
  size_t held = 0;
  for (size_t e = 0; e < logits.size(); ++e) {
    const float rank = Rank(logits[e]);
    auto better_than = [&](size_t j) { return rank > Rank(logits[static_cast<size_t>(ids[j])]); };
    if (held == ids.size()) {
      if (!better_than(held - 1)) continue;
    } else {
      ++held;
    }
    size_t place = held - 1;
    for (; place > 0 && better_than(place - 1); --place) ids[place] = ids[place - 1];
    ids[place] = static_cast<int32_t>(e);
  }
}

}  // namespace

void Planner::MakePlan(const RouterInput& input, RoutingPlan& plan) {
  plan.Start(input);
  const auto experts = static_cast<size_t>(input.experts);
  for (int32_t row = 0; row < input.rows; ++row) {
    TopK(input.logits.subspan(static_cast<size_t>(row) * experts, experts), plan.MutableIds(row));
    Weigh(input, row, plan.MutableIds(row), plan.MutableWeights(row));
  }
  plan.Finish();
  PlanStats& stats = plan.mutable_stats();
  stats.experts = static_cast<int32_t>(plan.active().size());
  stats.experts_exact = stats.experts;
  stats.rows = input.rows;
  stats.assignments = input.rows * input.top_k;
}

}  // namespace lynx::moe
