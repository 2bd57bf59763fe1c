#pragma once

#include <cstdint>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "common/moe/planner.h"

// Batches to plan for, and what a plan says, for the tests of policies.
namespace lynx::moe::testing {

// A step's input that owns what it points at.
struct Batch {
  int32_t rows = 0;
  int32_t experts = 0;
  int32_t top_k = 0;
  std::vector<float> logits;       // [rows, experts]
  std::vector<uint8_t> valid;      // [rows] or empty
  std::vector<uint8_t> opted_out;  // [rows] or empty
  std::vector<float> bias;         // [experts] or empty
  std::vector<float> expert_cost;  // [experts] or empty
  ExpertPlacement placement = {};  // Of all experts, or of none: ranks do not matter.
  Gate gate = {};
  Phase phase = Phase::kDecode;
  bool remap_mixed = false;

  static Batch Of(const std::vector<std::vector<float>>& rows, int32_t top_k);

  std::vector<float> Row(int32_t row) const;
  void SetRow(int32_t row, const std::vector<float>& row_logits);
  bool IsValid(int32_t row) const { return valid.empty() || valid[static_cast<size_t>(row)] != 0; }
  bool OptedOut(int32_t row) const {
    return !opted_out.empty() && opted_out[static_cast<size_t>(row)] != 0;
  }
  // The rows in another order: row i of the result is row order[i].
  Batch Reordered(const std::vector<int32_t>& order) const;
  std::string Describe() const;
};

// A plan, by rows.
struct Rows {
  std::vector<std::vector<int32_t>> ids;    // Empty for padding.
  std::vector<std::vector<float>> weights;  // Empty for padding.
  std::vector<float> kept_mass;
  std::vector<int32_t> active;
  PlanStats stats;

  friend bool operator==(const Rows& a, const Rows& b) {
    return a.ids == b.ids && a.weights == b.weights && a.kept_mass == b.kept_mass &&
           a.active == b.active;
  }
};

// The plan where every valid row that has not opted out has `policy`; checks the plan's own form.
Rows PlanOf(const Batch& batch, const Policy& policy);
// Of rows with policies of their own; null: none.
Rows PlanOf(const Batch& batch, const std::vector<const Policy*>& policies);
Rows ExactPlanOf(const Batch& batch);

// What the policy selects, before rows are assigned and the guard looks: internal to a plan.
std::set<int32_t> SelectedBy(const Batch& batch, const Policy& policy);

Policy Parse(const std::string& text);

// Draws batches of all shapes: rows alike or not, flat or sharp, with ties, masked experts, padding
// and rows that opt out.
class Draw {
 public:
  // The seed comes from LYNX_TEST_SEED or the clock, and is printed.
  Draw();

  struct Options {
    bool ties = true;      // Some batches have many equal logits.
    bool masks = true;     // Some have experts at -Inf.
    bool padding = true;   // Some have padding rows.
    bool opt_outs = true;  // In some, rows opt out.
    int32_t min_rows = 1;
    int32_t max_rows = 24;
    int32_t max_experts = 256;
  };
  Batch NextBatch(const Options& options);
  // Of any lossy kind, or of `kind`; fits the batch.
  Policy NextPolicy(const Batch& batch, std::optional<Policy::Kind> kind = std::nullopt);

  // In [least, most].
  int32_t Int(int32_t least, int32_t most);
  double Real(double least, double most);
  bool Chance(double share) { return Real(0, 1) < share; }
  std::mt19937& rng() { return rng_; }

 private:
  std::mt19937 rng_;
};

}  // namespace lynx::moe::testing
