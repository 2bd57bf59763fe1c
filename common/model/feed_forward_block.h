#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "common/model/activation_buffer.h"
#include "common/model/expert_rows.h"
#include "common/model/model_spec.h"
#include "common/model/model_weights.h"
#include "common/model/rank_sum.h"
#include "common/model/router_override.h"
#include "common/moe/expert_history.h"
#include "common/moe/expert_placement.h"
#include "common/moe/planner.h"
#include "kernels/core/exec_context.h"
#include "kernels/moe/expert_ffn.h"

namespace lynx::model {

// The feed-forward half of a decoder layer, mixture of experts (with or without
// a shared one) or dense:
//   h += ffn(norm(h))
// Owns the buffers that all layers of a model take turns in. One call at a time.
class FeedForwardBlock {
 public:
  // `spec` has the widths of this rank and all experts, which are dealt out in layout.ep parts.
  // Replicas have up to `max_rows` each. `router_override` may be null. All outlive this.
  FeedForwardBlock(const ModelSpec& spec, const ParallelLayout& layout, int64_t max_rows,
                   DType compute_dtype, RouterOverride* router_override, ExpertRows& expert_rows);
  // Is told the active set of every plan; outlives this.
  void SetHistory(moe::ExpertHistory* history) { history_ = history; }

  // Updates `hidden` [rows, hidden_size]. For an MoE layer the plan, which is of the rows of all
  // replicas, is made as `phase` and `policies` (as in moe::RouterInput) say; plan() then tells
  // what it was.
  absl::Status Run(const FeedForwardWeights& weights, int64_t rows, int32_t layer, moe::Phase phase,
                   std::span<const moe::Policy* const> policies, float* hidden, RankSum& sum,
                   const kernels::ExecContext& ctx);

  // Of the last MoE layer run, the same on all ranks; and how many of its active experts this one
  // computed.
  const moe::RoutingPlan& plan() const { return plan_; }
  int64_t own_active() const { return own_active_; }
  float plan_seconds() const { return plan_seconds_; }

 private:
  // Each adds its part to `y`, from the normed rows in x_; or to `sums`, if not null (ExpertFfn).
  absl::Status RunExperts(const FeedForwardWeights& weights, int64_t rows, int32_t layer,
                          moe::Phase phase, std::span<const moe::Policy* const> policies, float* y,
                          double* sums, RankSum& sum, const kernels::ExecContext& ctx);
  // One MLP for all rows, by dense_weights_.
  absl::Status RunDense(const kernels::ExpertWeights& mlp, int64_t rows, int64_t intermediate,
                        float* y, const kernels::ExecContext& ctx);
  // Chooses who computes each active expert.
  void ChooseParts(const ExpertTable& table);
  // What the plan says of rows that this rank's experts take; ids are slots of this rank.
  struct Assignments {
    const int32_t* ids = nullptr;    // [rows, plan's top_k]
    const float* weights = nullptr;  // [rows, plan's top_k]
    int64_t rows = 0;
  };
  Assignments Assign(const ExpertRows::Taken& taken);
  // Fills dense_weights_ for the shared expert.
  absl::Status WeighShared(const FeedForwardWeights& weights, int64_t rows,
                           const kernels::ExecContext& ctx);

  const ModelSpec& spec_;  // Outlives this.
  const bool experts_move_;
  RouterOverride* const router_override_;
  moe::ExpertHistory* history_ = nullptr;
  ExpertRows& expert_rows_;
  ActivationBuffer x_;                // [max_rows, hidden]
  std::vector<float> router_logits_;  // [max_rows, experts]
  moe::Planner planner_;
  moe::RoutingPlan plan_;
  moe::ReplicaChooser chooser_;
  std::vector<int32_t> own_ids_;    // Empty where the rank has all experts of all rows.
  std::vector<float> own_weights_;  // Of Assign(), where it does not take all rows.
  // Of active experts: who computes them, a part of ep, and the slot of those that this rank does.
  std::vector<int32_t> part_of_;   // [experts]
  std::vector<int32_t> own_slot_;  // [experts]
  int64_t own_active_ = 0;
  float plan_seconds_ = 0;
  kernels::ExpertFfnWorkspace workspace_;
  // The plan of an MLP that every row goes through: expert 0, with a weight of the row's.
  std::vector<int32_t> dense_ids_;    // [max_rows]
  std::vector<float> dense_weights_;  // [max_rows]
};

}  // namespace lynx::model
