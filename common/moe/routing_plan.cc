#include "common/moe/routing_plan.h"

#include <algorithm>

#include "common/base/check.h"

namespace lynx::moe {

RoutingPlan::RoutingPlan(int32_t max_rows, int32_t max_experts, int32_t max_top_k) {
  LYNX_CHECK(max_rows > 0 && max_experts > 0 && max_top_k > 0);
  ids_.resize(static_cast<size_t>(max_rows) * static_cast<size_t>(max_top_k));
  weights_.resize(ids_.size());
  row_widths_.resize(static_cast<size_t>(max_rows));
  kept_mass_.resize(static_cast<size_t>(max_rows));
  active_.reserve(static_cast<size_t>(max_experts));
  is_active_.resize(static_cast<size_t>(max_experts));
}

void RoutingPlan::Start(const RouterInput& input, int32_t top_k) {
  rows_ = input.rows;
  experts_ = input.experts;
  top_k_ = top_k;
  stats_ = {};
  LYNX_CHECK(Size() <= ids_.size() && static_cast<size_t>(rows_) <= row_widths_.size() &&
             static_cast<size_t>(experts_) <= is_active_.size());
}

void RoutingPlan::Finish() {
  std::fill_n(is_active_.begin(), experts_, uint8_t{0});
  const int32_t* ids = ids_.data();
  for (int32_t row = 0; row < rows_; ++row, ids += top_k_) {
    for (int32_t j = 0; j < row_width(row); ++j) is_active_[static_cast<size_t>(ids[j])] = 1;
  }
  active_.resize(static_cast<size_t>(experts_));
  size_t count = 0;
  for (int32_t e = 0; e < experts_; ++e) {  // Without a branch, which nothing could predict.
    active_[count] = e;
    count += is_active_[static_cast<size_t>(e)];
  }
  active_.resize(count);
}

}  // namespace lynx::moe
