#include "common/model/device_feed_forward_block.h"

#include <algorithm>

#include "common/base/status_macros.h"
#include "common/model/linear.h"
#include "kernels/elementwise/elementwise.h"
#include "kernels/gemm/gemm.h"

namespace lynx::model {
namespace {

int64_t MostIntermediate(const ModelSpec& spec) {
  return std::max(
      {spec.dense_intermediate_size, spec.expert_intermediate_size, spec.shared_intermediate_size});
}

size_t Size(int64_t a, int64_t b) { return static_cast<size_t>(a * b); }

}  // namespace

size_t DeviceFeedForwardBlock::ScratchBytes(const ModelSpec& spec, int64_t max_rows,
                                            DType compute_dtype) {
  const int64_t assignments = max_rows * std::max(1, spec.experts_per_token);
  const int64_t inner =
      kernels::ToPanelDepth(MostIntermediate(spec)) * static_cast<int64_t>(SizeOf(compute_dtype));
  const int64_t outer = spec.hidden_size * static_cast<int64_t>(sizeof(float));
  const int64_t lists = 16 * int64_t{spec.experts} + 4 * assignments + 8192;
  const size_t plan = spec.has_moe()
                          ? kernels::PlanScratchBytes(static_cast<int32_t>(max_rows), spec.experts,
                                                      spec.experts_per_token)
                          : 0;
  return std::max(static_cast<size_t>(assignments * (inner + outer) + lists), plan);
}

DeviceFeedForwardBlock::DeviceFeedForwardBlock(const ModelSpec& spec, const ModelWeights& weights,
                                               int64_t max_rows, DType compute_dtype,
                                               kernels::Device& device)
    : spec_(spec),
      weights_(weights),
      x_(max_rows, spec.hidden_size, compute_dtype, &device),
      router_logits_(&device, Size(max_rows, spec.experts)),
      ids_(&device, Size(max_rows, spec.experts_per_token)),
      row_weights_(&device, ids_.size()),
      widths_(&device, Size(max_rows, 1)),
      kept_mass_(&device, Size(max_rows, 1)),
      active_(&device, Size(spec.experts, 1)),
      summaries_(&device, Size(spec.layers, 1)),
      dense_ids_(&device, Size(max_rows, 1)),
      gates_(&device, Size(max_rows, 1)),
      workspace_(max_rows, std::max(1, spec.experts_per_token), std::max(1, spec.experts),
                 spec.hidden_size, MostIntermediate(spec), compute_dtype, /*on_device=*/true) {
  for (const LayerWeights& layer : weights.layers) {
    std::vector<kernels::ExpertWeights> experts = layer.feed_forward.experts;
    experts.push_back(layer.feed_forward.shared);
    experts_.push_back(CopyOf(std::span<const kernels::ExpertWeights>(experts), &device));
  }
  const std::vector<float> multipliers(Size(max_rows, 1), spec.residual_multiplier);
  dense_weights_ = CopyOf(std::span(multipliers), &device);
}

absl::Status DeviceFeedForwardBlock::Run(int32_t layer, int64_t rows, const DevicePlanRows& plan,
                                         float* hidden, const kernels::ExecContext& ctx) {
  const FeedForwardWeights& weights = weights_.layers[static_cast<size_t>(layer)].feed_forward;
  const kernels::ExpertWeights* const experts = experts_[static_cast<size_t>(layer)].data();
  LYNX_RETURN_IF_ERROR(
      Normalise(hidden, weights.input_norm, spec_.rms_norm_epsilon, rows, x_, ctx));
  if (!weights.is_moe()) {
    return RunDense(experts, weights.experts.front(), rows, spec_.dense_intermediate_size,
                    dense_weights_.data(), hidden, ctx);
  }
  LYNX_RETURN_IF_ERROR(Plan(weights, layer, rows, plan, ctx));
  LYNX_RETURN_IF_ERROR(
      kernels::ExpertFfn({.x = x_.data(),
                          .experts = experts,
                          .ids = ids_.data(),
                          .weights = row_weights_.data(),
                          .y = hidden,
                          .rows = rows,
                          .hidden = spec_.hidden_size,
                          .intermediate = spec_.expert_intermediate_size,
                          .expert_count = static_cast<int64_t>(weights.experts.size()),
                          .top_k = spec_.experts_per_token,
                          .x_stride = x_.stride(),
                          .y_stride = spec_.hidden_size,
                          .x_dtype = x_.dtype(),
                          .device_weights = weights.experts.front().gate_up.dtype,
                          .clamp = spec_.expert_clamp,
                          .scale_input = spec_.gate.scales_input},
                         workspace_, ctx));
  if (weights.shared.down.data == nullptr) return absl::OkStatus();
  LYNX_ASSIGN_OR_RETURN(const float* const shared, WeighShared(weights, rows, ctx));
  return RunDense(experts + weights.experts.size(), weights.shared, rows,
                  spec_.shared_intermediate_size, shared, hidden, ctx);
}

absl::StatusOr<const float*> DeviceFeedForwardBlock::WeighShared(const FeedForwardWeights& weights,
                                                                 int64_t rows,
                                                                 const kernels::ExecContext& ctx) {
  if (weights.shared_gate.data == nullptr) return dense_weights_.data();
  LYNX_RETURN_IF_ERROR(
      kernels::Gemm(Projection(x_, weights.shared_gate, {}, rows, gates_.data()), ctx));
  LYNX_RETURN_IF_ERROR(kernels::GateWeights(
      {.weights = gates_.data(), .rows = rows, .scale = spec_.residual_multiplier}, ctx));
  return gates_.data();
}

absl::Status DeviceFeedForwardBlock::Plan(const FeedForwardWeights& weights, int32_t layer,
                                          int64_t rows, const DevicePlanRows& plan,
                                          const kernels::ExecContext& ctx) {
  LYNX_RETURN_IF_ERROR(kernels::Gemm(
      Projection(x_, weights.router, weights.router_bias, rows, router_logits_.data()), ctx));
  const moe::Gate& gate = spec_.gate;
  return kernels::MakeDevicePlan(
      {.logits = router_logits_.data(),
       .bias = DataOrNull(weights.ranking_bias),
       .valid = plan.valid,
       .row_policies = plan.policies,
       .parameters = plan.parameters,
       .rows = static_cast<int32_t>(rows),
       .experts = spec_.experts,
       .top_k = spec_.experts_per_token,
       .sigmoid = gate.score == moe::Gate::Score::kSigmoid,
       .keep_mass = gate.rule == moe::Gate::Rule::kKeepMass,
       .group_sum = gate.group_score == moe::Gate::GroupScore::kTopTwoSum,
       .groups = gate.groups,
       .groups_kept = gate.groups_kept,
       .scale = gate.scale,
       .ids = ids_.data(),
       .weights = row_weights_.data(),
       .widths = widths_.data(),
       .kept_mass = kept_mass_.data(),
       .active = active_.data(),
       .summary = summaries_.data() + layer},
      ctx);
}

absl::Status DeviceFeedForwardBlock::RunDense(const kernels::ExpertWeights* mlp,
                                              const kernels::ExpertWeights& shape, int64_t rows,
                                              int64_t intermediate, const float* weights, float* y,
                                              const kernels::ExecContext& ctx) {
  return kernels::ExpertFfn({.x = x_.data(),
                             .experts = mlp,
                             .ids = dense_ids_.data(),
                             .weights = weights,
                             .y = y,
                             .rows = rows,
                             .hidden = spec_.hidden_size,
                             .intermediate = intermediate,
                             .expert_count = 1,
                             .top_k = 1,
                             .x_stride = x_.stride(),
                             .y_stride = spec_.hidden_size,
                             .x_dtype = x_.dtype(),
                             .device_weights = shape.gate_up.dtype},
                            workspace_, ctx);
}

}  // namespace lynx::model
