#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/core/scratch_layout.h"
#include "kernels/moe/plan_args.h"

// For the kernels of plans, and for who gives them memory.
namespace lynx::kernels::internal {

enum class PlanRowState : uint8_t { kPadding, kBad, kOwn, kRemapped };  // As moe's RowState.

// What the launches of one plan tell each other.
struct PlanProgress {
  int32_t bypass;  // PlanBypass
  int32_t exact_distinct;
  int32_t own_distinct;  // Without bad rows.
  int32_t guarded;
  int32_t masked;       // Some row that votes has an expert at -Inf.
  int32_t first_valid;  // -1: none.
  uint32_t present;     // Bit p: some row is remapped by policy p.
  uint32_t voted;       // Blocks of the third launch that are through,
  uint32_t assigned;    // and of the fourth.
};

inline constexpr int kPlanWords = 32;  // Of a set of experts, a bit each.

// Where each array lies from `base` on. Copied to the kernels.
struct PlanScratch {
  PlanProgress* progress;
  uint32_t* active;       // [kPlanWords] What policies selected.
  uint32_t* exact_union;  // [kPlanWords] Of all rows but padding.
  uint32_t* used;         // [kPlanWords] What the rows that vote go through.
  uint32_t* used_by_all;  // [kPlanWords] And bad ones.
  PlanRowState* states;   // [rows]
  uint8_t* masked;        // [rows]
  float* best;            // [rows] Of the scores of the row's own top-k the first,
  float* worst;           // and the last.
  float* scores;          // [rows, experts] Where they are not the logits.
  float* values;          // [rows, experts]
  float* group_scores;    // [rows, experts]
  uint32_t* mass;         // [rows, experts] Softmax in 2^-24,
  uint32_t* gate_mass;    // and what the gate gives, if that is something else.
  int32_t* exact_ids;     // [rows, top_k]
  float* exact_weights;   // [rows, top_k]
  int32_t* chosen_ids;    // [rows, top_k]
  float* chosen_weights;  // [rows, top_k]
  float* chosen_kept;     // [rows]
  int32_t* widths;        // [rows]
  int32_t* stand_ins;     // [rows]
  uint32_t* place;        // [kMaxPlanPolicies, experts] Higher is liked more; of lynx.
  double* columns;        // [experts, rows]
  // Of voters, while a set of experts grows.
  int32_t* kept_ids;     // [rows, top_k]
  int32_t* kept_held;    // [rows]
  uint64_t* kept_sum;    // [rows]
  uint64_t* exact_sum;   // [rows]
  uint64_t* kept_ratio;  // [rows]
  size_t bytes;

  PlanScratch(std::byte* base, int32_t row_count, int32_t expert_count, int32_t top_k) {
    const auto rows = static_cast<size_t>(row_count), experts = static_cast<size_t>(expert_count);
    const size_t ids = rows * static_cast<size_t>(top_k);
    ScratchLayout layout(base);
    layout.Take(progress, 1);
    layout.Take(active, kPlanWords);
    layout.Take(exact_union, kPlanWords);
    layout.Take(used, kPlanWords);
    layout.Take(used_by_all, kPlanWords);
    layout.Take(states, rows);
    layout.Take(masked, rows);
    layout.Take(best, rows);
    layout.Take(worst, rows);
    layout.Take(scores, rows * experts);
    layout.Take(values, rows * experts);
    layout.Take(group_scores, rows * experts);
    layout.Take(mass, rows * experts);
    layout.Take(gate_mass, rows * experts);
    layout.Take(exact_ids, ids);
    layout.Take(exact_weights, ids);
    layout.Take(chosen_ids, ids);
    layout.Take(chosen_weights, ids);
    layout.Take(chosen_kept, rows);
    layout.Take(widths, rows);
    layout.Take(stand_ins, rows);
    layout.Take(place, size_t{kMaxPlanPolicies} * experts);
    layout.Take(columns, rows * experts);
    layout.Take(kept_ids, ids);
    layout.Take(kept_held, rows);
    layout.Take(kept_sum, rows);
    layout.Take(exact_sum, rows);
    layout.Take(kept_ratio, rows);
    bytes = layout.bytes();
  }
};

}  // namespace lynx::kernels::internal
