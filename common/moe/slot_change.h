#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "common/moe/expert_history.h"
#include "common/moe/expert_placement.h"

namespace lynx::moe {

// [ranks][slots of the rank] The expert in each; distinct within a rank.
using ExpertSlots = std::vector<std::vector<int32_t>>;

// `slots` as a placement of `experts`, each of which is in one of them.
ExpertPlacement PlacementOf(const ExpertSlots& slots, int32_t experts);

// Better slots by what experts cost their ranks (>= 0, copies sharing it), by few moves: each time
// the one that evens the ranks out most, of
//   a copy of an expert of the fullest rank in the place of an expert that others hold, too;
//   an exchange of an expert of the fullest rank with one of another.
// Every expert stays somewhere, the fullest rank never gets fuller, and no rank gets more than
// `most_new` experts that it did not have. Greedy; ties go to the lower rank and slot.
ExpertSlots ImproveSlots(ExpertSlots slots, std::span<const double> cost, int32_t most_new);

// Experts of the fullest rank under the best choice among copies: the mean over `steps`, active
// sets, of which there is one at least.
double MeanMost(const ExpertSlots& slots, int32_t experts,
                std::span<const std::vector<int32_t>> steps);

// Changes of a layer's slots that are worth making, one after the other.
struct SlotPlan {
  std::vector<ExpertSlots> changes;  // None: the slots are good.
  double before = 0;                 // MeanMost() of the last steps,
  double after = 0;                  // and by the last of the changes.
};
// ImproveSlots() by how likely steps need an expert, `most_new` experts to a rank at a time and up
// to kMostChanges times, where all of that saves the share `least_gain` of what the fullest rank
// has, over the last steps of the history, which has some.
inline constexpr size_t kMostChanges = 8;
SlotPlan PlanSlots(const ExpertSlots& slots, const ExpertHistory::Layer& history, int32_t most_new,
                   double least_gain);

// Experts that ranks would have to read: those of `to` that a rank does not hold in `from`.
int32_t CountNew(const ExpertSlots& from, const ExpertSlots& to);

}  // namespace lynx::moe
