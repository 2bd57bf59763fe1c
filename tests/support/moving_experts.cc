#include "tests/support/moving_experts.h"

#include <algorithm>
#include <utility>

#include "common/base/status_macros.h"

namespace lynx::testing {

MovingExpertsRunner::MovingExpertsRunner(RankGroupRunner& ranks, uint64_t seed)
    : ranks_(ranks), random_(seed) {
  const model::ExpertMover& mover = *ranks_.rank(0).expert_mover();
  slots_.assign(static_cast<size_t>(mover.layers().back()) + 1, mover.first_slots());
}

moe::ExpertSlots MovingExpertsRunner::Changed(const moe::ExpertSlots& slots) {
  const auto pick = [this](size_t count) { return static_cast<size_t>(random_() % count); };
  const auto holds = [](const std::vector<int32_t>& part, int32_t e) {
    return std::ranges::find(part, e) != part.end();
  };
  const int32_t experts = ranks_.spec().experts;
  for (;;) {
    moe::ExpertSlots changed = slots;
    const size_t a = pick(slots.size());
    const size_t b = (a + 1 + pick(slots.size() - 1)) % slots.size();
    int32_t& of_a = changed[a][pick(changed[a].size())];
    int32_t& of_b = changed[b][pick(changed[b].size())];
    if (holds(slots[b], of_a)) continue;
    if (!holds(slots[a], of_b) && pick(2) == 0) {
      std::swap(of_a, of_b);
    } else {
      of_b = of_a;  // What was there may be nowhere else.
    }
    const moe::ExpertPlacement placement = moe::PlacementOf(changed, experts);
    if (std::ranges::none_of(placement.ranks_of, [](const auto& r) { return r.empty(); })) {
      return changed;
    }
  }
}

absl::Status MovingExpertsRunner::Step(std::span<const model::SequenceRows> batch,
                                       model::StepObserver* observer) {
  const auto layers = ranks_.rank(0).expert_mover()->layers();
  const int32_t layer = layers[static_cast<size_t>(random_() % layers.size())];
  moe::ExpertSlots& slots = slots_[static_cast<size_t>(layer)];
  const model::ExpertChange change{.id = ++changes_, .layer = layer, .slots = Changed(slots)};
  for (size_t rank = 0; rank < ranks_.size(); ++rank) {
    LYNX_RETURN_IF_ERROR(ranks_.rank(rank).expert_mover()->Stage(change));
  }
  for (size_t rank = 0; rank < ranks_.size(); ++rank) {
    LYNX_RETURN_IF_ERROR(ranks_.rank(rank).expert_mover()->Commit(change.id));
  }
  moved_ += moe::CountNew(slots, change.slots);
  slots = change.slots;
  return ranks_.Step(batch, observer);
}

}  // namespace lynx::testing
