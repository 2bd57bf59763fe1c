#include "common/moe/planner.h"

#include <algorithm>
#include <limits>
#include <optional>

#include "common/base/check.h"
#include "common/moe/internal/stages.h"
#include "common/moe/internal/workspace.h"

namespace lynx::moe {
namespace {

using internal::RowState;
using internal::Workspace;
using Kind = Policy::Kind;

const Policy& PolicyOf(const RouterInput& input, int32_t row) {
  return *input.policies[static_cast<size_t>(row)];
}

// Most rows name the same object.
bool SamePolicy(const Policy& a, const Policy& b) { return &a == &b || a == b; }

// As its authors released it, lynx knows no bypass and no guard.
bool AllCompat(const RouterInput& input, const Workspace& workspace) {
  for (int32_t row = 0; row < input.rows; ++row) {
    if (workspace.StateOf(row) == RowState::kRemapped &&
        PolicyOf(input, row).kind != Kind::kLynxCompat) {
      return false;
    }
  }
  return true;
}

struct Census {
  int32_t own = 0;
  int32_t remapped = 0;
  int32_t bad = 0;
  bool opted_out = false;  // Somebody chose to keep its own.
};

Census Count(const RouterInput& input, const Workspace& workspace) {
  Census census;
  for (int32_t row = 0; row < input.rows; ++row) {
    const RowState state = workspace.StateOf(row);
    census.own += state == RowState::kOwn ? 1 : 0;
    census.remapped += state == RowState::kRemapped ? 1 : 0;
    census.bad += state == RowState::kBad ? 1 : 0;
    census.opted_out |= state == RowState::kOwn && !input.policies.empty() &&
                        input.policies[static_cast<size_t>(row)] != nullptr;
  }
  return census;
}

Bypass WhyExact(const RouterInput& input, const Workspace& workspace, const Census& census) {
  if (census.remapped == 0) {
    if (census.own == 0 && census.bad > 0) return Bypass::kBadLogits;
    return census.opted_out ? Bypass::kOptOut : Bypass::kPolicyOff;
  }
  if (input.phase != Phase::kDecode && !(input.phase == Phase::kMixed && input.remap_mixed)) {
    return Bypass::kPhase;
  }
  if (AllCompat(input, workspace)) return Bypass::kNone;
  if (input.top_k == input.experts) return Bypass::kKEqualsN;
  if (census.own + census.remapped == 1) {
    return census.bad > 0 ? Bypass::kBadLogits : Bypass::kBatchOfOne;
  }
  return Bypass::kNone;
}

void Select(const RouterInput& input, const Policy& policy, Workspace& workspace) {
  std::fill_n(workspace.selected.begin(), workspace.experts, uint8_t{0});
  switch (policy.kind) {
    case Kind::kLynx:
    case Kind::kLynxCompat:
      SelectLynx(policy, workspace);
      return;
    case Kind::kOea:
    case Kind::kPrune:
      SelectTopRanks(input, policy, workspace);
      return;
    case Kind::kVote:
      SelectVote(input, policy, workspace);
      return;
    case Kind::kBudget:
      SelectBudget(input, policy, workspace);
      return;
    case Kind::kMarginal:
      SelectMarginal(input, policy, workspace);
      return;
    case Kind::kExact:
    case Kind::kAuto:
      break;
  }
  LYNX_CHECK_MSG(false, "policy " + ToString(policy) + " selects nothing");
}

// The active set: the union of what each group of equal policies selects. Rows that keep their own
// vote in every group; a group of another policy does not.
void SelectAll(const RouterInput& input, Workspace& workspace) {
  std::fill_n(workspace.active.begin(), workspace.experts, uint8_t{0});
  std::fill_n(workspace.done.begin(), input.rows, uint8_t{0});
  for (int32_t first = 0; first < input.rows; ++first) {
    if (workspace.StateOf(first) != RowState::kRemapped ||
        workspace.done[static_cast<size_t>(first)] != 0) {
      continue;
    }
    const Policy& policy = PolicyOf(input, first);
    workspace.voters.clear();
    for (int32_t row = 0; row < input.rows; ++row) {
      const bool remapped = workspace.StateOf(row) == RowState::kRemapped;
      if (!workspace.Votes(row) || (remapped && !SamePolicy(PolicyOf(input, row), policy)))
        continue;
      workspace.voters.push_back(row);
      workspace.done[static_cast<size_t>(row)] = 1;
    }
    Select(input, policy, workspace);
    for (size_t e = 0; e < workspace.experts; ++e) workspace.active[e] |= workspace.selected[e];
  }
}

// Every row its own.
void AssignExact(const RouterInput& input, Workspace& workspace) {
  std::copy_n(workspace.exact_ids.begin(), static_cast<size_t>(input.rows) * workspace.top_k,
              workspace.chosen_ids.begin());
  std::fill_n(workspace.widths.begin(), input.rows, input.top_k);
  std::fill_n(workspace.stand_ins.begin(), input.rows, 0);
}

// Distinct experts of the rows of at least state `least`, in their own top-k or as chosen.
int32_t CountDistinct(const RouterInput& input, RowState least, bool chosen, Workspace& workspace) {
  std::fill_n(workspace.selected.begin(), workspace.experts, uint8_t{0});
  for (int32_t row = 0; row < input.rows; ++row) {
    if (workspace.StateOf(row) < least) continue;
    const auto width = static_cast<size_t>(workspace.widths[static_cast<size_t>(row)]);
    for (int32_t e : chosen ? workspace.ChosenOf(row).first(width) : workspace.ExactOf(row)) {
      workspace.selected[static_cast<size_t>(e)] = 1;
    }
  }
  const auto begin = workspace.selected.begin();
  return static_cast<int32_t>(
      std::count(begin, begin + static_cast<ptrdiff_t>(workspace.experts), uint8_t{1}));
}

// From what was assigned to a plan with weights and figures.
void WriteRows(const RouterInput& input, Workspace& workspace, RoutingPlan& plan) {
  PlanStats& stats = plan.mutable_stats();
  double kept_sum = 0;
  int32_t ranked = 0;
  std::optional<int32_t> first_valid;
  for (int32_t row = 0; row < input.rows; ++row) {
    const RowState state = workspace.StateOf(row);
    if (state == RowState::kPadding) continue;
    if (!first_valid.has_value()) first_valid = row;
    const auto width = static_cast<size_t>(workspace.widths[static_cast<size_t>(row)]);
    const std::span<int32_t> ids = plan.MutableIds(row);
    const std::span<float> weights = plan.MutableWeights(row);
    const std::span<const int32_t> chosen = workspace.ChosenOf(row).first(width);
    std::copy(chosen.begin(), chosen.end(), ids.begin());
    std::fill(ids.begin() + static_cast<ptrdiff_t>(width), ids.end(), chosen[0]);
    float kept = 1;
    if (state == RowState::kBad) {
      std::fill(weights.begin(), weights.end(), std::numeric_limits<float>::quiet_NaN());
      ++stats.bad_rows;
    } else {
      std::fill(weights.begin(), weights.end(), 0.0f);
      kept = Weigh(input, row, workspace.ExactOf(row), chosen, weights.first(width), workspace);
      stats.remapped += workspace.stand_ins[static_cast<size_t>(row)];
      stats.kept_mass_min = std::min(stats.kept_mass_min, kept);
      kept_sum += static_cast<double>(kept);
      ++ranked;
    }
    plan.SetRow(row, static_cast<int32_t>(width), kept);
    ++stats.rows;
    stats.assignments += static_cast<int32_t>(width);
  }
  if (ranked > 0) stats.kept_mass_mean = static_cast<float>(kept_sum / ranked);
  for (int32_t row = 0; row < input.rows; ++row) {
    if (workspace.StateOf(row) != RowState::kPadding) continue;
    const std::span<int32_t> ids = plan.MutableIds(row);
    if (first_valid.has_value()) {
      std::ranges::copy(plan.MutableIds(*first_valid), ids.begin());
    } else {
      std::ranges::fill(ids, 0);
    }
    std::ranges::fill(plan.MutableWeights(row), 0.0f);
    plan.SetRow(row, 0, 1);
  }
}

// The widest valid row's width.
int32_t Width(const RouterInput& input, const Workspace& workspace) {
  int32_t width = 0;
  for (int32_t row = 0; row < input.rows; ++row) {
    if (workspace.StateOf(row) == RowState::kPadding) continue;
    width = std::max(width, workspace.widths[static_cast<size_t>(row)]);
  }
  return width > 0 ? width : input.top_k;
}

}  // namespace

Planner::Planner(int32_t max_rows, int32_t max_experts, int32_t max_top_k)
    : workspace_(std::make_unique<Workspace>(max_rows, max_experts, max_top_k)) {}
Planner::~Planner() = default;
Planner::Planner(Planner&&) noexcept = default;

void Planner::MakePlan(const RouterInput& input, RoutingPlan& plan) {
  Workspace& workspace = *workspace_;
  const auto rows = static_cast<size_t>(input.rows);
  const auto experts = static_cast<size_t>(input.experts);
  LYNX_CHECK(input.rows >= 0 && input.top_k > 0 && input.top_k <= input.experts);
  LYNX_CHECK(input.logits.size() == rows * experts);
  LYNX_CHECK(rows <= workspace.states.size() && experts <= workspace.active.size() &&
             rows * static_cast<size_t>(input.top_k) <= workspace.exact_ids.size());
  LYNX_CHECK(input.policies.empty() || input.policies.size() == rows);
  LYNX_CHECK(input.valid.empty() || input.valid.size() == rows);
  LYNX_CHECK(input.bias.empty() || input.bias.size() == experts);
  LYNX_CHECK(input.expert_cost.empty() || input.expert_cost.size() == experts);
  LYNX_CHECK(input.placement == nullptr || (input.placement->experts() == input.experts &&
                                            input.placement->ranks <= input.experts));

  RankRows(input, workspace);
  AssignExact(input, workspace);
  const Census census = Count(input, workspace);
  Bypass bypass = WhyExact(input, workspace, census);
  const int32_t exact_distinct = CountDistinct(input, RowState::kBad, false, workspace);
  const bool shared = input.placement != nullptr;
  const int32_t rank_exact = shared ? MostOnARank(input, workspace.selected, workspace) : 0;
  if (bypass == Bypass::kNone) {
    // Bad rows are left out: they must not change what their neighbours get.
    const int32_t own_distinct =
        census.bad == 0 ? exact_distinct : CountDistinct(input, RowState::kOwn, false, workspace);
    const bool guarded = !AllCompat(input, workspace);
    const auto assign = [&] {
      AddShortRows(input, workspace);
      Assign(input, workspace);
      return !guarded || CountDistinct(input, RowState::kOwn, true, workspace) < own_distinct;
    };
    SelectAll(input, workspace);
    bool fewer = assign();
    if (fewer && BalanceRanks(input, own_distinct, workspace)) fewer = assign();
    if (!fewer) {
      AssignExact(input, workspace);
      bypass = Bypass::kGuard;
    }
  }

  plan.Start(input, Width(input, workspace));
  WriteRows(input, workspace, plan);
  plan.Finish();
  PlanStats& stats = plan.mutable_stats();
  stats.experts_exact = exact_distinct;
  stats.experts = static_cast<int32_t>(plan.active().size());
  stats.bypass = bypass;
  if (shared) {
    CountDistinct(input, RowState::kBad, true, workspace);
    stats.ranks = input.placement->ranks;
    stats.rank_experts_exact = rank_exact;
    stats.rank_experts = MostOnARank(input, workspace.selected, workspace);
  }
}

}  // namespace lynx::moe
