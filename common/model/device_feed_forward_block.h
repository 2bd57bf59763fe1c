#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/model/activation_buffer.h"
#include "common/model/model_spec.h"
#include "common/model/model_weights.h"
#include "common/model/step_memory.h"
#include "kernels/core/device.h"
#include "kernels/core/exec_context.h"
#include "kernels/moe/expert_ffn.h"
#include "kernels/moe/plan.h"

namespace lynx::model {

// Who may be remapped in a step, in memory of the device: see kernels::PlanArgs.
struct DevicePlanRows {
  const uint8_t* valid = nullptr;
  const int8_t* policies = nullptr;
  const kernels::PlanParameters* parameters = nullptr;
};

// FeedForwardBlock on a device that has all experts: plans are made there, and nothing waits for
// the host. One call at a time.
class DeviceFeedForwardBlock {
 public:
  // `weights` are on `device`; both outlive this. Throws std::bad_alloc where there is no memory.
  DeviceFeedForwardBlock(const ModelSpec& spec, const ModelWeights& weights, int64_t max_rows,
                         DType compute_dtype, kernels::Device& device);

  // Queues h += ffn(norm(h)) of `rows` rows of layer `layer`.
  absl::Status Run(int32_t layer, int64_t rows, const DevicePlanRows& plan, float* hidden,
                   const kernels::ExecContext& ctx);

  // [layers], of the layers run in this step; on the device.
  kernels::PlanSummary* summaries() { return summaries_.data(); }

  // What its operations need.
  static size_t ScratchBytes(const ModelSpec& spec, int64_t max_rows, DType compute_dtype);

 private:
  absl::Status Plan(const FeedForwardWeights& weights, int32_t layer, int64_t rows,
                    const DevicePlanRows& plan, const kernels::ExecContext& ctx);
  // One MLP for all rows, `mlp` on the device and `shape` of it.
  absl::Status RunDense(const kernels::ExpertWeights* mlp, const kernels::ExpertWeights& shape,
                        int64_t rows, int64_t intermediate, const float* weights, float* y,
                        const kernels::ExecContext& ctx);
  // What a shared expert's rows weigh.
  absl::StatusOr<const float*> WeighShared(const FeedForwardWeights& weights, int64_t rows,
                                           const kernels::ExecContext& ctx);

  const ModelSpec& spec_;
  const ModelWeights& weights_;
  // Of each layer: its experts, then the shared one.
  std::vector<StepArray<kernels::ExpertWeights>> experts_;
  ActivationBuffer x_;              // [max_rows, hidden]
  StepArray<float> router_logits_;  // [max_rows, experts]
  StepArray<int32_t> ids_;          // [max_rows, top_k]
  StepArray<float> row_weights_;    // [max_rows, top_k]
  StepArray<int32_t> widths_;       // [max_rows]
  StepArray<float> kept_mass_;      // [max_rows]
  StepArray<int32_t> active_;       // [experts]
  StepArray<kernels::PlanSummary> summaries_;
  // The plan of an MLP that every row goes through: expert 0, and the residual multiplier.
  StepArray<int32_t> dense_ids_;    // [max_rows]
  StepArray<float> dense_weights_;  // [max_rows]
  StepArray<float> gates_;          // [max_rows], of shared experts that have one.
  kernels::ExpertFfnWorkspace workspace_;
};

}  // namespace lynx::model
