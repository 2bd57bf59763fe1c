#include "services/cli/bench/placement_count.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <span>
#include <utility>
#include <vector>

#include "common/model/expert_mover.h"
#include "common/model/shard_plan.h"
#include "common/moe/expert_history.h"
#include "common/moe/expert_placement.h"
#include "common/moe/planner.h"
#include "common/moe/routing_plan.h"
#include "common/moe/slot_change.h"
#include "services/cli/bench/quantile.h"

namespace lynx::cli {
namespace {

constexpr double kLeastGain = 0.03;  // The default of --ep-rebalance-gain.

// Plans of replayed steps.
class Replay {
 public:
  Replay(const RouterTraces& traces, int32_t experts, int32_t top_k, int32_t rows)
      : traces_(traces),
        experts_(experts),
        top_k_(top_k),
        rows_(rows),
        composed_(std::max(rows, static_cast<int32_t>(traces.sequences) / rows * rows)),
        logits_(static_cast<size_t>(composed_) * static_cast<size_t>(experts)),
        plan_(rows, experts, top_k),
        planner_(rows, experts, top_k) {}

  // Steps of other sequences at the same time.
  int32_t groups() const { return composed_ / rows_; }

  // A null policy is exact; without a placement it knows of no ranks.
  const moe::RoutingPlan& Plan(int64_t step, int64_t layer, const moe::Policy* policy,
                               const moe::ExpertPlacement* placement = nullptr, int32_t group = 0) {
    ComposeRouterLogits(traces_, experts_, composed_, step * traces_.layers + layer, logits_);
    const size_t size = logits_.size() / static_cast<size_t>(composed_ / rows_);
    const std::vector<const moe::Policy*> policies(static_cast<size_t>(rows_), policy);
    planner_.MakePlan(
        {.logits = std::span(logits_).subspan(static_cast<size_t>(group) * size, size),
         .rows = rows_,
         .experts = experts_,
         .top_k = top_k_,
         .policies = policies,
         .placement = placement},
        plan_);
    return plan_;
  }

 private:
  const RouterTraces& traces_;
  const int32_t experts_;
  const int32_t top_k_;
  const int32_t rows_;
  const int32_t composed_;  // Rows of all groups.
  std::vector<float> logits_;
  moe::RoutingPlan plan_;
  moe::Planner planner_;
};

// [experts] How many tokens of the layer's history chose each.
std::vector<int64_t> CountTokens(Replay& history, int64_t layer, int64_t steps, int32_t experts) {
  std::vector<int64_t> counts(static_cast<size_t>(experts));
  for (int64_t step = 0; step < steps; ++step) {
    for (const int32_t e : history.Plan(step, layer, nullptr).ids()) {
      ++counts[static_cast<size_t>(e)];
    }
  }
  return counts;
}

// Of the fullest rank, where rows take an expert's copies in turn: several may be in use.
int32_t MostOfSplit(const moe::RoutingPlan& plan, const moe::ExpertPlacement& placement) {
  std::vector<std::vector<uint8_t>> used(
      static_cast<size_t>(placement.ranks),
      std::vector<uint8_t>(static_cast<size_t>(placement.experts())));
  const std::span<const int32_t> ids = plan.ids();
  for (size_t i = 0; i < ids.size(); ++i) {
    const auto e = static_cast<size_t>(ids[i]);
    const std::vector<int32_t>& ranks = placement.ranks_of[e];
    const size_t row = i / static_cast<size_t>(plan.top_k());
    used[static_cast<size_t>(ranks[(row + e) % ranks.size()])][e] = 1;
  }
  int64_t most = 0;
  for (const std::vector<uint8_t>& rank : used) {
    most = std::max<int64_t>(most, std::count(rank.begin(), rank.end(), 1));
  }
  return static_cast<int32_t>(most);
}

// Slots as they are once experts have moved as long as that gains enough, by the history of steps
// under the policy, in which all traced sequences have a part.
moe::ExpertSlots Serve(moe::ExpertSlots slots, Replay& history, int64_t layer, int64_t steps,
                       int32_t experts, const moe::Policy* policy) {
  moe::ExpertHistory counted(1, experts);
  const moe::ExpertPlacement placement = moe::PlacementOf(slots, experts);
  for (int64_t step = 0; step < steps; ++step) {
    for (int32_t group = 0; group < history.groups(); ++group) {
      counted.Record(0, history.Plan(step, layer, policy, &placement, group).active());
    }
  }
  for (;;) {
    const moe::SlotPlan plan =
        moe::PlanSlots(slots, counted.Get(0), model::ExpertMover::kMostNew, kLeastGain);
    if (plan.changes.empty()) return slots;
    slots = plan.changes.back();
  }
}

int32_t Share(size_t experts, int32_t ranks) {
  return (static_cast<int32_t>(experts) + ranks - 1) / ranks;
}

}  // namespace

PlacementCount CountPlacements(const RouterTraces& traces, const moe::Policy& policy,
                               int32_t experts, int32_t top_k, int32_t batch, int32_t ep,
                               int32_t spare) {
  const moe::PlacementShape shape = {
      .experts = experts, .ranks = ep, .slots = (experts + ep - 1) / ep + spare};
  const int64_t half = std::max<int64_t>(traces.steps / 2, 1);
  const auto sequences = static_cast<int32_t>(traces.sequences);
  Replay history(traces, experts, top_k, sequences);
  Replay replay(traces, experts, top_k, batch);
  PlacementCount count;
  std::vector<double> times;
  moe::ReplicaChooser chooser(experts, ep);
  const moe::ExpertPlacement even = moe::PlaceEvenly(experts, ep);
  moe::Policy balanced = policy;
  balanced.ep_balance = std::max(0.0, policy.ep_balance);
  const moe::ExpertSlots first =
      model::FirstExperts(experts, {.tp = ep, .ep = ep, .ep_spare = spare});
  const moe::ExpertPlacement first_placement = moe::PlacementOf(first, experts);
  const auto served_by = [&](int64_t layer, const moe::Policy* used) {
    return moe::PlacementOf(Serve(first, replay, layer, half, experts, used), experts);
  };
  for (int64_t layer = 0; layer < traces.layers; ++layer) {
    const moe::ExpertPlacement exact_served = served_by(layer, nullptr);
    const moe::ExpertPlacement policy_served = served_by(layer, &policy);
    const moe::ExpertPlacement balanced_served = served_by(layer, &balanced);
    const std::vector<int64_t> tokens = CountTokens(history, layer, half, experts);
    const moe::ExpertPlacement by_tokens =
        moe::PlaceByCost(std::vector<double>(tokens.begin(), tokens.end()), shape);
    const moe::ExpertPlacement by_activity =
        moe::PlaceByCost(moe::ActivityCost(tokens, half * sequences, batch), shape);
    const auto most = [&](const moe::ExpertPlacement& placement, std::span<const int32_t> active) {
      chooser.Choose(placement, active);
      return chooser.most();
    };
    for (int64_t step = traces.steps - half; step < traces.steps; ++step) {
      const moe::RoutingPlan& exact = replay.Plan(step, layer, nullptr);
      count.least += Share(exact.active().size(), ep);
      count.even += most(even, exact.active());
      count.by_tokens += most(by_tokens, exact.active());
      count.split += MostOfSplit(exact, by_tokens);
      const auto start = std::chrono::steady_clock::now();
      count.by_activity += most(by_activity, exact.active());
      times.push_back(
          std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start)
              .count());
      count.first += most(first_placement, exact.active());
      count.served += most(exact_served, exact.active());
      for (const auto& [placement, sum] : {std::pair(&first_placement, &count.balanced_first),
                                           std::pair(&balanced_served, &count.balanced_served)}) {
        *sum += replay.Plan(step, layer, &balanced, placement).stats().rank_experts;
      }
      const moe::RoutingPlan& remapped = replay.Plan(step, layer, &policy);
      count.policy_least += Share(remapped.active().size(), ep);
      count.policy_even += most(even, remapped.active());
      count.policy_by_activity += most(by_activity, remapped.active());
      count.policy_first += most(first_placement, remapped.active());
      count.policy_served += most(policy_served, remapped.active());
    }
  }
  const auto plans = static_cast<double>(half * traces.layers);
  for (double* sum : {&count.least, &count.even, &count.by_tokens, &count.split, &count.by_activity,
                      &count.policy_least, &count.policy_even, &count.policy_by_activity,
                      &count.first, &count.served, &count.policy_first, &count.policy_served,
                      &count.balanced_first, &count.balanced_served}) {
    *sum /= plans;
  }
  count.choose_us = Median(times);
  return count;
}

}  // namespace lynx::cli
