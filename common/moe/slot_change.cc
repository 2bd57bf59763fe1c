#include "common/moe/slot_change.h"

#include <algorithm>
#include <cstddef>
#include <optional>
#include <utility>

namespace lynx::moe {
namespace {

bool Holds(const std::vector<int32_t>& rank, int32_t expert) {
  return std::ranges::find(rank, expert) != rank.end();
}

// What ranks have to carry, and how it would be after a move.
class Loads {
 public:
  Loads(const ExpertSlots& slots, std::span<const double> cost)
      : slots_(slots), cost_(cost), load_(slots.size()), copies_(cost.size()) {
    for (const std::vector<int32_t>& rank : slots) {
      for (const int32_t e : rank) ++copies_[static_cast<size_t>(e)];
    }
    for (size_t r = 0; r < slots.size(); ++r) {
      for (const int32_t e : slots[r]) load_[r] += Share(e, 0);
    }
  }

  size_t Fullest() const {
    return static_cast<size_t>(std::ranges::max_element(load_) - load_.begin());
  }
  int32_t copies(int32_t expert) const { return copies_[static_cast<size_t>(expert)]; }

  // By how much the sum of squares of loads would fall: the more, the more even. 0 where the
  // fullest rank would get fuller.
  double GainOfCopy(size_t to, int32_t out, int32_t in) const {
    std::vector<double> after = load_;
    for (size_t r = 0; r < slots_.size(); ++r) {
      if (r == to) continue;
      if (Holds(slots_[r], out)) after[r] += Share(out, -1) - Share(out, 0);
      if (Holds(slots_[r], in)) after[r] += Share(in, 1) - Share(in, 0);
    }
    after[to] += Share(in, 1) - Share(out, 0);
    if (std::ranges::max(after) > std::ranges::max(load_)) return 0;
    return Squares(load_) - Squares(after);
  }
  double GainOfExchange(size_t a, int32_t of_a, size_t b, int32_t of_b) const {
    const double moved = Share(of_a, 0) - Share(of_b, 0);
    return Square(load_[a]) + Square(load_[b]) - Square(load_[a] - moved) -
           Square(load_[b] + moved);
  }

 private:
  double Share(int32_t expert, int32_t more) const {
    return cost_[static_cast<size_t>(expert)] / (copies(expert) + more);
  }
  static double Square(double x) { return x * x; }
  static double Squares(std::span<const double> values) {
    double sum = 0;
    for (const double v : values) sum += Square(v);
    return sum;
  }

  const ExpertSlots& slots_;
  const std::span<const double> cost_;
  std::vector<double> load_;
  std::vector<int32_t> copies_;
};

struct Move {
  double gain = 0;
  size_t to = 0;  // Its slot gets `in`, and where `back` is set, slot `from_slot` of rank `from`
  size_t to_slot = 0;  // what was there.
  int32_t in = 0;
  size_t from = 0;
  size_t from_slot = 0;
  bool back = false;
};

std::optional<Move> BestMove(const ExpertSlots& slots, std::span<const double> cost,
                             std::span<const int32_t> new_left) {
  const Loads loads(slots, cost);
  const size_t from = loads.Fullest();
  // What counts as better, not as noise of sums.
  constexpr double kLeast = 1e-9;
  Move best{.gain = kLeast};
  for (size_t to = 0; to < slots.size(); ++to) {
    if (to == from || new_left[to] == 0) continue;
    for (size_t i = 0; i < slots[from].size(); ++i) {
      const int32_t in = slots[from][i];
      if (Holds(slots[to], in)) continue;
      for (size_t j = 0; j < slots[to].size(); ++j) {
        const int32_t out = slots[to][j];
        const auto consider = [&](double gain, bool back) {
          if (gain <= best.gain) return;
          best = {gain, to, j, in, from, i, back};
        };
        if (loads.copies(out) > 1) consider(loads.GainOfCopy(to, out, in), false);
        if (new_left[from] > 0 && !Holds(slots[from], out)) {
          consider(loads.GainOfExchange(from, in, to, out), true);
        }
      }
    }
  }
  if (best.gain <= kLeast) return std::nullopt;
  return best;
}

}  // namespace

ExpertPlacement PlacementOf(const ExpertSlots& slots, int32_t experts) {
  ExpertPlacement placement{.ranks = static_cast<int32_t>(slots.size())};
  placement.ranks_of.resize(static_cast<size_t>(experts));
  for (size_t r = 0; r < slots.size(); ++r) {
    for (const int32_t e : slots[r]) {
      placement.ranks_of[static_cast<size_t>(e)].push_back(static_cast<int32_t>(r));
    }
  }
  return placement;
}

ExpertSlots ImproveSlots(ExpertSlots slots, std::span<const double> cost, int32_t most_new) {
  std::vector<int32_t> new_left(slots.size(), most_new);
  while (const std::optional<Move> move = BestMove(slots, cost, new_left)) {
    int32_t& slot = slots[move->to][move->to_slot];
    if (move->back) {
      slots[move->from][move->from_slot] = slot;
      --new_left[move->from];
    }
    slot = move->in;
    --new_left[move->to];
  }
  return slots;
}

double MeanMost(const ExpertSlots& slots, int32_t experts,
                std::span<const std::vector<int32_t>> steps) {
  const ExpertPlacement placement = PlacementOf(slots, experts);
  ReplicaChooser chooser(experts, placement.ranks);
  int64_t sum = 0;
  for (const std::vector<int32_t>& active : steps) {
    chooser.Choose(placement, active);
    sum += chooser.most();
  }
  return static_cast<double>(sum) / static_cast<double>(steps.size());
}

SlotPlan PlanSlots(const ExpertSlots& slots, const ExpertHistory::Layer& history, int32_t most_new,
                   double least_gain) {
  SlotPlan plan;
  const ExpertSlots* now = &slots;
  std::vector<ExpertSlots> changes;
  changes.reserve(kMostChanges);
  while (changes.size() < kMostChanges) {
    ExpertSlots better = ImproveSlots(*now, history.share, most_new);
    if (better == *now) break;
    now = &changes.emplace_back(std::move(better));
  }
  if (changes.empty()) return plan;
  const auto experts = static_cast<int32_t>(history.share.size());
  plan.before = MeanMost(slots, experts, history.recent);
  plan.after = MeanMost(*now, experts, history.recent);
  if (plan.after < plan.before && plan.after <= (1 - least_gain) * plan.before) {
    plan.changes = std::move(changes);
  }
  return plan;
}

int32_t CountNew(const ExpertSlots& from, const ExpertSlots& to) {
  int32_t count = 0;
  for (size_t r = 0; r < to.size(); ++r) {
    for (const int32_t e : to[r]) count += Holds(from[r], e) ? 0 : 1;
  }
  return count;
}

}  // namespace lynx::moe
