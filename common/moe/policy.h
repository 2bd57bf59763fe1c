#pragma once

#include <string_view>

#include "common/moe/routing_plan.h"

namespace lynx::moe {

// How a plan is made. Pure: the same input gives the same plan, bit for bit.
//
// One policy object per model runner; called by one thread at a time.
class Policy {
 public:
  virtual ~Policy() = default;
  virtual std::string_view name() const = 0;
  // `plan` was made for sizes that `input` fits.
  virtual void MakePlan(const RouterInput& input, RoutingPlan& plan) = 0;
};

// Every row gets its own top-k: highest logit first, ties to the lower id; NaN ranks as -Inf.
class ExactPolicy : public Policy {
 public:
  std::string_view name() const override { return "exact"; }
  void MakePlan(const RouterInput& input, RoutingPlan& plan) override;
};

}  // namespace lynx::moe
