#pragma once

#include <cstddef>
#include <cstdint>

namespace lynx::kernels {

inline constexpr int32_t kMaxPlanRows = 4095;
inline constexpr int32_t kMaxPlanExperts = 1024;
inline constexpr int32_t kMaxPlanTopK = 32;
inline constexpr int32_t kMaxPlanPolicies = 8;

// A policy of common/moe/policy.h as a GPU reads it: the same fields, complete, of a kind that
// remaps. common/model/device_policy.h makes them.
struct PlanPolicy {
  enum class Kind : uint8_t { kPrune, kVote, kLynxCompat, kLynx, kOea, kBudget, kMarginal };
  static constexpr int32_t kUnbounded = -1;  // beta

  Kind kind = Kind::kLynx;
  bool self_scaled = false;
  int32_t beta = 0;
  int32_t floor = 0;
  int32_t k0 = 0;
  int32_t experts = 0;  // 0: no limit by number.
  double alpha = 0;
  double fraction = 0;  // 0: no limit by share.
  double coverage = 0;  // 0: not asked for; likewise the next.
  double row_coverage = 0;
  double lambda = 0;
};

// What of a plan may change from step to step. It lies in device memory, so that a captured graph
// takes it as it is when it runs.
struct PlanParameters {
  PlanPolicy policies[kMaxPlanPolicies] = {};  // The first `count`, no two of them equal.
  int32_t count = 0;
  // Whether rows with a policy are remapped: a step of decode, or a mixed one where that is wanted.
  bool remap = true;
};

// The numbers of moe::Bypass.
enum class PlanBypass : int32_t {
  kNone,
  kPhase,
  kBatchOfOne,
  kKEqualsN,
  kPolicyOff,
  kOptOut,
  kGuard,
  kBadLogits,
};

// The fields of moe::PlanStats that do not speak of ranks.
struct PlanSummary {
  int32_t experts_exact = 0;
  int32_t experts = 0;  // And so many of PlanArgs::active.
  int32_t rows = 0;
  int32_t assignments = 0;
  int32_t remapped = 0;
  int32_t bad_rows = 0;
  PlanBypass bypass = PlanBypass::kPolicyOff;
  float kept_mass_mean = 1;
  float kept_mass_min = 1;
};

// What PlanArgs::row_policies says of a row, if not the number of a policy.
inline constexpr int8_t kNoPolicy = -1;
inline constexpr int8_t kExactPolicy = -2;  // Chosen, for what the summary says.

// One plan of moe::Planner: the expert assignment of one MoE layer in one step. All pointers are to
// device memory; pointers that may be null say so.
struct PlanArgs {
  const float* logits = nullptr;               // [rows, experts]
  const float* bias = nullptr;                 // [experts] or null
  const uint8_t* valid = nullptr;              // [rows] or null: 0 is a padding row
  const int8_t* row_policies = nullptr;        // [rows], or null: nobody has one
  const float* expert_cost = nullptr;          // [experts], >= 0, or null: 1 each
  const PlanParameters* parameters = nullptr;  // One.
  int32_t rows = 0;                            // [0, kMaxPlanRows]; 0 is a no-op
  int32_t experts = 0;                         // (0, kMaxPlanExperts]
  int32_t top_k = 0;                           // (0, min(experts, kMaxPlanTopK)]

  // The gate, as moe::Gate.
  bool sigmoid = false;
  bool keep_mass = false;
  bool group_sum = false;  // Groups are judged by the sum of their best two.
  int32_t groups = 1;
  int32_t groups_kept = 1;
  float scale = 1;

  // Results. Rows stay top_k wide where a policy prunes: filled up with the first expert at weight
  // 0.
  int32_t* ids = nullptr;          // [rows, top_k]
  float* weights = nullptr;        // [rows, top_k]
  int32_t* widths = nullptr;       // [rows]; 0: padding
  float* kept_mass = nullptr;      // [rows]
  int32_t* active = nullptr;       // [experts]; ascending
  PlanSummary* summary = nullptr;  // One.
};

// Scratch memory that a plan of this size needs.
size_t PlanScratchBytes(int32_t rows, int32_t experts, int32_t top_k);

}  // namespace lynx::kernels
