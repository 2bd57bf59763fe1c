#include "common/moe/routing_plan.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "common/base/check.h"
#include "common/moe/gate_math.h"

namespace lynx::moe {

RoutingPlan::RoutingPlan(int32_t max_rows, int32_t max_experts, int32_t max_top_k) {
  LYNX_CHECK(max_rows > 0 && max_experts > 0 && max_top_k > 0);
  ids_.resize(static_cast<size_t>(max_rows) * static_cast<size_t>(max_top_k));
  weights_.resize(ids_.size());
  active_.reserve(static_cast<size_t>(max_experts));
  is_active_.resize(static_cast<size_t>(max_experts));
}

void RoutingPlan::Start(const RouterInput& input) {
  LYNX_CHECK(input.rows >= 0 && input.top_k > 0 && input.top_k <= input.experts);
  LYNX_CHECK(input.logits.size() ==
             static_cast<size_t>(input.rows) * static_cast<size_t>(input.experts));
  rows_ = input.rows;
  experts_ = input.experts;
  top_k_ = input.top_k;
  stats_ = {};
  LYNX_CHECK(Size() <= ids_.size() && static_cast<size_t>(experts_) <= is_active_.size());
}

void RoutingPlan::Finish() {
  std::fill_n(is_active_.begin(), experts_, uint8_t{0});
  for (int32_t id : ids()) is_active_[static_cast<size_t>(id)] = 1;
  active_.clear();
  for (int32_t e = 0; e < experts_; ++e) {
    if (is_active_[static_cast<size_t>(e)] != 0) active_.push_back(e);
  }
}

void Weigh(const RouterInput& input, int32_t row, std::span<const int32_t> ids,
           std::span<float> weights) {
  const auto experts = static_cast<size_t>(input.experts);
  const std::span<const float> logits =
      input.logits.subspan(static_cast<size_t>(row) * experts, experts);
  float largest = -std::numeric_limits<float>::infinity();
  bool nan = false;
  for (float logit : logits) {
    nan = nan || std::isnan(logit);
    largest = std::max(largest, logit);
  }
  if (nan) {
    std::fill(weights.begin(), weights.end(), std::numeric_limits<float>::quiet_NaN());
    return;
  }
  float kept = 0;
  for (size_t j = 0; j < ids.size(); ++j) {
    weights[j] = GateExp(logits[static_cast<size_t>(ids[j])] - largest);
    kept += weights[j];
  }
  float total = kept;
  if (input.gate.rule == Gate::Rule::kKeepMass) {
    total = 0;
    for (float logit : logits) total += GateExp(logit - largest);
  }
  for (float& weight : weights) weight /= total;
}

}  // namespace lynx::moe
