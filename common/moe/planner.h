#pragma once

#include "common/moe/routing_plan.h"

namespace lynx::moe {

// Makes plans. Pure: the same input gives the same plan, bit for bit.
//
// Holds scratch memory only; one thread at a time.
class Planner {
 public:
  // `plan` was made for sizes that `input` fits.
  void MakePlan(const RouterInput& input, RoutingPlan& plan);
};

}  // namespace lynx::moe
