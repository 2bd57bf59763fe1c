#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "common/moe/expert_placement.h"
#include "common/moe/internal/row_ops.h"
#include "common/moe/routing_plan.h"

namespace lynx::moe::internal {

enum class RowState : uint8_t {
  kPadding,
  kBad,       // Its logits cannot be ranked: it has no say and no part in anything.
  kOwn,       // Keeps its own top-k, and votes.
  kRemapped,  // By its policy.
};

// What the stages of one plan share. Each array is sized once, for the largest plan; a stage writes
// what it is said to own and reads the rest.
struct Workspace {
  Workspace(int32_t max_rows, int32_t max_experts, int32_t max_top_k);

  // --- Of RankRows ---
  size_t experts = 0;
  size_t top_k = 0;
  // [rows, experts] what rows rank experts by: logits, or biased scores. -Inf: not for this row.
  const float* scores = nullptr;
  bool masked = false;              // Some row that votes has a score of -Inf.
  std::vector<RowState> states;     // [rows]
  std::vector<int32_t> exact_ids;   // [rows, top_k], best first.
  std::vector<float> score_buffer;  // [rows, experts]: scores, where they are not the logits.
  std::vector<float> row_buffer;    // [experts]
  std::vector<float> group_buffer;  // [experts]

  // --- Of whoever ranks ---
  std::vector<TopRow> top_rows;  // [rows]

  // --- Of the wrapper: who chooses the active set in the selection in hand ---
  std::vector<int32_t> voters;  // Rows, ascending.
  std::vector<uint8_t> done;    // [rows] Remapped rows whose policy had its selection.

  // --- Of a selection ---
  std::vector<uint8_t> selected;      // [experts]
  std::vector<uint8_t> bins;          // [rows, experts]
  std::vector<double> columns;        // [experts, voters]: an expert's bins, ascending.
  std::vector<uint64_t> liking;       // [experts]
  std::vector<int32_t> order;         // [experts]
  std::vector<int32_t> picks;         // [top_k]
  std::vector<uint32_t> mass;         // [rows, experts] in 2^-24
  std::vector<uint64_t> column_mass;  // [experts] in 2^-24
  std::vector<float> exps;            // [experts]
  std::vector<uint32_t> votes;        // [experts]
  // Per voter, while a set grows: its best experts in the set, and their mass.
  std::vector<int32_t> kept_ids;   // [voters, top_k]
  std::vector<int32_t> kept_held;  // [voters]
  std::vector<uint64_t> kept_sum;
  std::vector<uint64_t> exact_sum;
  std::vector<uint64_t> kept_ratio;  // kept_sum / exact_sum in 2^-24

  // --- Of BalanceRanks ---
  std::vector<uint8_t>
      chosen_experts;  // [experts] What rows use of the active set that policies left.
  std::vector<uint8_t> kept_experts;  // [experts] Those that stay in it.
  ReplicaChooser chooser;
  std::vector<int32_t> shared_experts;  // Of MostOnARank.

  // --- The active set, of all selections and what AddShortRows adds ---
  std::vector<uint8_t> active;  // [experts]

  // --- Of Assign ---
  std::vector<int32_t> chosen_ids;  // [rows, top_k]
  std::vector<int32_t> widths;      // [rows]
  std::vector<int32_t> stand_ins;   // [rows] How many of chosen_ids are not of exact_ids.

  const float* ScoresOf(int32_t row) const { return scores + static_cast<size_t>(row) * experts; }
  std::span<int32_t> ExactOf(int32_t row) {
    return std::span(exact_ids).subspan(static_cast<size_t>(row) * top_k, top_k);
  }
  std::span<int32_t> ChosenOf(int32_t row) {
    return std::span(chosen_ids).subspan(static_cast<size_t>(row) * top_k, top_k);
  }
  uint8_t* BinsOf(int32_t row) { return bins.data() + static_cast<size_t>(row) * experts; }
  std::span<uint32_t> MassOf(int32_t row) {
    return std::span(mass).subspan(static_cast<size_t>(row) * experts, experts);
  }
  RowState StateOf(int32_t row) const { return states[static_cast<size_t>(row)]; }
  bool Votes(int32_t row) const { return StateOf(row) >= RowState::kOwn; }
};

inline const float* LogitsOf(const RouterInput& input, int32_t row) {
  return input.logits.data() + static_cast<size_t>(row) * static_cast<size_t>(input.experts);
}

}  // namespace lynx::moe::internal
