#pragma once

#include <cstdint>
#include <span>
#include <vector>

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
};

// Why a plan is what every row would have had alone.
enum class Bypass : uint8_t {
  kNone,  // It was remapped, or could have been.
  kPhase,
  kBatchOfOne,
  kKEqualsN,
  kPolicyOff,  // No row has a lossy policy.
  kGuard,      // The policy would have called for more experts, not fewer.
};

// What a plan did, for metrics.
struct PlanStats {
  int32_t experts_exact = 0;  // Distinct experts of the rows' own top-k. 0: not an MoE layer.
  int32_t experts = 0;        // Distinct experts of the plan.
  int32_t rows = 0;           // Valid ones.
  int32_t assignments = 0;
  int32_t remapped = 0;  // Assignments that are not of the row's own top-k.
  int32_t bad_rows = 0;  // Rows with too few finite logits, or NaN or +Inf among them.
  Bypass bypass = Bypass::kPolicyOff;
  float kept_mass_mean = 1;
  float kept_mass_min = 1;
};

// The expert assignment of one MoE layer in one step: which experts each row goes through, in
// descending order of its own scores, with what weight.
//
// Every valid row has top_k() distinct experts; active() is the ascending set of all experts named.
// Sized once, then reused every layer without allocation. Not thread-safe.
class RoutingPlan {
 public:
  // The largest plan it will hold; all > 0.
  RoutingPlan(int32_t max_rows, int32_t max_experts, int32_t max_top_k);

  int32_t rows() const { return rows_; }
  int32_t top_k() const { return top_k_; }
  std::span<const int32_t> ids() const { return Filled(ids_); }        // [rows, top_k]
  std::span<const float> weights() const { return Filled(weights_); }  // [rows, top_k]
  std::span<const int32_t> active() const { return active_; }
  const PlanStats& stats() const { return stats_; }

  // For the planner: starts a plan for `input`, whose size must fit; then ids and weights of every
  // row are to be written, and Finish() called.
  void Start(const RouterInput& input);
  std::span<int32_t> MutableIds(int32_t row) { return RowOf(ids_, row); }
  std::span<float> MutableWeights(int32_t row) { return RowOf(weights_, row); }
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
  std::vector<int32_t> active_;
  std::vector<uint8_t> is_active_;  // [experts]
};

// Weights for row `row` of `input` of the chosen experts `ids`, by its gate. Any NaN among the
// row's logits makes all of them NaN, so that it reaches the row's output instead of vanishing.
void Weigh(const RouterInput& input, int32_t row, std::span<const int32_t> ids,
           std::span<float> weights);

}  // namespace lynx::moe
