#pragma once

#include <memory>

#include "common/moe/routing_plan.h"

namespace lynx::moe {

namespace internal {
struct Workspace;
}  // namespace internal

// Makes plans: the wrapper around every policy, and its three stages.
//   select  the active set, from the rows that vote: by policy, one group of equal policies after
//           the other; the active set is the union.
//   assign  each remapped row its best experts within the active set.
//   weigh   by the model's gate.
// Padding and bad rows neither vote nor count. Rows keep their own top-k, with the same bits as
// alone, where a Bypass says so; a row whose best experts are all active always does.
//
// Pure: the same input gives the same plan, bit for bit; the order of rows does not matter.
//
// Holds scratch memory only, all of it made by the constructor; one thread at a time.
class Planner {
 public:
  // The largest plan it will make; all > 0.
  Planner(int32_t max_rows, int32_t max_experts, int32_t max_top_k);
  ~Planner();
  Planner(Planner&&) noexcept;

  // `input` fits the sizes given, and so does `plan`. Policies passed CheckPolicy() for the input's
  // sizes, and none is kAuto.
  void MakePlan(const RouterInput& input, RoutingPlan& plan);

 private:
  std::unique_ptr<internal::Workspace> workspace_;
};

}  // namespace lynx::moe
