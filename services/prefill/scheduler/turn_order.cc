#include "services/prefill/scheduler/turn_order.h"

#include <algorithm>
#include <numeric>
#include <tuple>

namespace lynx::prefill {
namespace {

enum class Urgency : uint8_t { kDue, kNormal, kHopeless };

// A prompt is due when less than this many times what it takes alone is left. It shares its steps,
// and a step may be under way.
constexpr int kHaste = 2;

Urgency UrgencyOf(const Turn& turn, const StepTime& step_time, absl::Time now) {
  if (!step_time.known() || turn.deadline == absl::InfiniteFuture()) return Urgency::kNormal;
  const absl::Duration left = turn.deadline - now;
  const absl::Duration alone = step_time.Steps(turn.rows_left);
  if (left < alone) return Urgency::kHopeless;
  return left < kHaste * alone + step_time.Step(step_time.max_rows) ? Urgency::kDue
                                                                    : Urgency::kNormal;
}

}  // namespace

std::vector<size_t> TurnOrder(std::span<const Turn> turns, const StepTime& step_time,
                              absl::Time now) {
  std::vector<Urgency> urgency;
  urgency.reserve(turns.size());
  for (const Turn& turn : turns) urgency.push_back(UrgencyOf(turn, step_time, now));
  std::vector<size_t> order(turns.size());
  std::iota(order.begin(), order.end(), size_t{0});
  const auto key = [&](size_t i) {
    const Turn& turn = turns[i];
    const bool due = urgency[i] == Urgency::kDue;
    const bool hopeless = urgency[i] == Urgency::kHopeless;
    return std::tuple(turn.priority, urgency[i], due ? turn.deadline : absl::InfinitePast(),
                      turn.place, hopeless ? 0 : turn.rows_left, turn.arrival);
  };
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return key(a) < key(b); });
  return order;
}

}  // namespace lynx::prefill
