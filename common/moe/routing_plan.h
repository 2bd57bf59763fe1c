#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "common/moe/expert_placement.h"
#include "common/moe/gate.h"
#include "common/moe/policy.h"

namespace lynx::moe {

enum class Phase : uint8_t { kDecode, kPrefill, kMixed };

// Router logits of one MoE layer in one step, and who may be remapped.
struct RouterInput {
  std::span<const float> logits;  // [rows, experts]
  int32_t rows = 0;               // >= 0
  int32_t experts = 0;            // > 0
  int32_t top_k = 0;              // in [1, experts]
  int32_t layer = 0;
  Gate gate = {};
  std::span<const float> bias = {};  // [experts] or empty: added to the score for ranking only.
  // Of the whole step. Anything but kDecode gives every row its own top-k.
  Phase phase = Phase::kDecode;
  // [rows] or empty. Null, or empty for all: the row keeps its own top-k, and its experts serve
  // the others. Rows that name equal policies are planned together.
  std::span<const Policy* const> policies = {};
  // [rows] or empty: 0 marks a padding row, which neither votes nor is planned.
  std::span<const uint8_t> valid = {};
  // Rows with a policy are remapped in a mixed step too. Its prefill rows must then have none:
  // their experts are loaded anyway and serve the others.
  bool remap_mixed = false;
  // [experts] or empty for 1 each, >= 0: what using an expert costs (0: at hand already). Only
  // Policy::Kind::kMarginal looks at it.
  std::span<const float> expert_cost = {};
  // Null, or of `experts`: which ranks, at most as many as experts, hold an expert; one of them
  // computes it. For Policy::ep_balance, and for what PlanStats says of ranks.
  const ExpertPlacement* placement = nullptr;
};

// Why a plan is what every row would have had alone.
enum class Bypass : uint8_t {
  kNone,  // It was remapped.
  kPhase,
  kBatchOfOne,
  kKEqualsN,
  kPolicyOff,  // No row has a policy.
  kOptOut,     // Rows have policies, and all say exact.
  kGuard,      // The policy would not have called for fewer experts.
  kBadLogits,  // Bad rows left fewer than two.
};

// What a plan did, for metrics.
struct PlanStats {
  int32_t experts_exact = 0;  // Distinct experts of the rows' own top-k. 0: not an MoE layer.
  int32_t experts = 0;        // Distinct experts of the plan.
  // Where the input names ranks, how many, and what the rank has to compute of these that has most,
  // by the best choice among copies.
  int32_t ranks = 0;
  int32_t rank_experts_exact = 0;
  int32_t rank_experts = 0;
  int32_t rows = 0;  // Valid ones.
  int32_t assignments = 0;
  int32_t remapped = 0;  // Assignments that are not of the row's own top-k.
  int32_t bad_rows = 0;  // Rows with too few finite logits, or NaN or +Inf among them.
  Bypass bypass = Bypass::kPolicyOff;
  // Of the valid rows that are not bad: see RoutingPlan::kept_mass().
  float kept_mass_mean = 1;
  float kept_mass_min = 1;
};

// The expert assignment of one MoE layer in one step: which experts each row goes through, in
// descending order of its own scores, with what weight.
//
// A valid row has row_width() distinct experts: the model's top-k, or fewer where a policy prunes.
// Rows narrower than top_k(), which is the widest row's, are filled up with their first expert at
// weight 0. A padding row has the ids of a valid one at weight 0. active() is the ascending set of
// all experts of valid rows.
//
// A bad row (NaN, +Inf or fewer than k finite logits) has NaN weights: they reach its output, where
// the sampler looks for them, instead of vanishing.
//
// Sized once, then reused every layer without allocation. Not thread-safe.
class RoutingPlan {
 public:
  // The largest plan it will hold; all > 0.
  RoutingPlan(int32_t max_rows, int32_t max_experts, int32_t max_top_k);

  int32_t rows() const { return rows_; }
  int32_t top_k() const { return top_k_; }
  std::span<const int32_t> ids() const { return Filled(ids_); }        // [rows, top_k]
  std::span<const float> weights() const { return Filled(weights_); }  // [rows, top_k]
  // 0 for a padding row.
  int32_t row_width(int32_t row) const { return row_widths_[static_cast<size_t>(row)]; }
  // The gate's mass of the row's experts over that of its own top-k; 1 for padding and bad rows.
  std::span<const float> kept_mass() const {
    return std::span<const float>(kept_mass_).first(static_cast<size_t>(rows_));
  }
  std::span<const int32_t> active() const { return active_; }
  const PlanStats& stats() const { return stats_; }

  // For the planner: starts a plan for `input`, whose size must fit, of rows at most `top_k` wide.
  // Then ids, weights, width and kept mass of every row are to be written, and Finish() called.
  void Start(const RouterInput& input, int32_t top_k);
  std::span<int32_t> MutableIds(int32_t row) { return RowOf(ids_, row); }
  std::span<float> MutableWeights(int32_t row) { return RowOf(weights_, row); }
  void SetRow(int32_t row, int32_t width, float kept_mass) {
    row_widths_[static_cast<size_t>(row)] = width;
    kept_mass_[static_cast<size_t>(row)] = kept_mass;
  }
  PlanStats& mutable_stats() { return stats_; }
  // Derives active().
  void Finish();

 private:
  size_t Size() const { return static_cast<size_t>(rows_) * static_cast<size_t>(top_k_); }
  template <typename T>
  std::span<const T> Filled(const std::vector<T>& all) const {
    return std::span<const T>(all).first(Size());
  }
  template <typename T>
  std::span<T> RowOf(std::vector<T>& all, int32_t row) {
    const auto width = static_cast<size_t>(top_k_);
    return std::span<T>(all).subspan(static_cast<size_t>(row) * width, width);
  }

  int32_t rows_ = 0;
  int32_t experts_ = 0;
  int32_t top_k_ = 0;
  PlanStats stats_;
  std::vector<int32_t> ids_;
  std::vector<float> weights_;
  std::vector<int32_t> row_widths_;  // [rows]
  std::vector<float> kept_mass_;     // [rows]
  std::vector<int32_t> active_;
  std::vector<uint8_t> is_active_;  // [experts]
};

}  // namespace lynx::moe
