#include "common/model/feed_forward_block.h"

#include <algorithm>
#include <chrono>
#include <span>

#include "common/base/status_macros.h"
#include "common/model/linear.h"
#include "kernels/elementwise/elementwise.h"
#include "kernels/gemm/gemm.h"

namespace lynx::model {

FeedForwardBlock::FeedForwardBlock(const ModelSpec& spec, const ParallelLayout& layout,
                                   int64_t max_rows, DType compute_dtype,
                                   RouterOverride* router_override, ExpertRows& expert_rows)
    : spec_(spec),
      experts_move_(layout.ep_spare > 0),
      router_override_(router_override),
      expert_rows_(expert_rows),
      x_(max_rows, spec.hidden_size, compute_dtype),
      router_logits_(static_cast<size_t>(max_rows * spec.experts)),
      planner_(static_cast<int32_t>(max_rows * layout.dp), std::max(1, spec.experts),
               std::max(1, spec.experts_per_token)),
      plan_(static_cast<int32_t>(max_rows * layout.dp), std::max(1, spec.experts),
            std::max(1, spec.experts_per_token)),
      chooser_(spec.experts, layout.ep),
      own_ids_(layout.ep > 1 || layout.dp > 1
                   ? static_cast<size_t>(max_rows * layout.dp * spec.experts_per_token)
                   : 0),
      own_weights_(layout.dp > 1 ? own_ids_.size() : 0),
      part_of_(static_cast<size_t>(spec.experts)),
      own_slot_(part_of_.size()),
      workspace_(max_rows * layout.dp, std::max(1, spec.experts_per_token),
                 std::max(1, spec.experts), spec.hidden_size,
                 std::max({spec.dense_intermediate_size, spec.expert_intermediate_size,
                           spec.shared_intermediate_size}),
                 compute_dtype),
      dense_ids_(static_cast<size_t>(max_rows), 0),
      dense_weights_(static_cast<size_t>(max_rows)) {}

absl::Status FeedForwardBlock::Run(const FeedForwardWeights& weights, int64_t rows, int32_t layer,
                                   moe::Phase phase, std::span<const moe::Policy* const> policies,
                                   float* hidden, RankSum& sum, const kernels::ExecContext& ctx) {
  LYNX_RETURN_IF_ERROR(
      Normalise(hidden, weights.input_norm, spec_.rms_norm_epsilon, rows, x_, ctx));
  float* const y = sum.Begin(hidden, rows);
  if (!weights.is_moe()) {
    LYNX_RETURN_IF_ERROR(expert_rows_.Agree(sum));
    std::fill_n(dense_weights_.begin(), rows, spec_.residual_multiplier);
    LYNX_RETURN_IF_ERROR(
        RunDense(weights.experts.front(), rows, spec_.dense_intermediate_size, y, ctx));
    return sum.End(hidden, rows);
  }
  double* const sums = experts_move_ ? sum.BeginSummands(rows) : nullptr;
  LYNX_RETURN_IF_ERROR(RunExperts(weights, rows, layer, phase, policies, y, sums, sum, ctx));
  if (weights.shared.down.data != nullptr) {
    LYNX_RETURN_IF_ERROR(WeighShared(weights, rows, ctx));
    LYNX_RETURN_IF_ERROR(RunDense(weights.shared, rows, spec_.shared_intermediate_size, y, ctx));
  }
  return experts_move_ ? sum.EndSummands(hidden, rows) : sum.End(hidden, rows);
}

void FeedForwardBlock::ChooseParts(const ExpertTable& table) {
  const std::span<const int32_t> active = plan_.active();
  own_active_ = std::ssize(active);
  if (own_ids_.empty()) return;
  const std::span<const int32_t> parts = chooser_.Choose(table.placement(), active);
  own_active_ = 0;
  for (size_t i = 0; i < active.size(); ++i) {
    const auto expert = static_cast<size_t>(active[i]);
    const bool own = parts[i] == table.part();
    part_of_[expert] = parts[i];
    own_slot_[expert] = own ? table.slot_of(active[i]) : kernels::kNoExpert;
    own_active_ += own ? 1 : 0;
  }
}

FeedForwardBlock::Assignments FeedForwardBlock::Assign(const ExpertRows::Taken& taken) {
  const std::span<const int32_t> ids = plan_.ids();
  const float* const weights = plan_.weights().data();
  if (taken.all) {
    if (own_ids_.empty()) return {ids.data(), weights, plan_.rows()};
    for (size_t i = 0; i < ids.size(); ++i) own_ids_[i] = own_slot_[static_cast<size_t>(ids[i])];
    return {own_ids_.data(), weights, plan_.rows()};
  }
  size_t to = 0;
  for (const int32_t row : taken.rows) {
    auto from = static_cast<size_t>(row) * static_cast<size_t>(plan_.top_k());
    for (const size_t end = from + static_cast<size_t>(plan_.top_k()); from < end; ++from, ++to) {
      own_ids_[to] = own_slot_[static_cast<size_t>(ids[from])];
      own_weights_[to] = weights[from];
    }
  }
  return {own_ids_.data(), own_weights_.data(), std::ssize(taken.rows)};
}

absl::Status FeedForwardBlock::RunExperts(const FeedForwardWeights& weights, int64_t rows,
                                          int32_t layer, moe::Phase phase,
                                          std::span<const moe::Policy* const> policies, float* y,
                                          double* sums, RankSum& sum,
                                          const kernels::ExecContext& ctx) {
  LYNX_RETURN_IF_ERROR(kernels::Gemm(
      Projection(x_, weights.router, weights.router_bias, rows, router_logits_.data()), ctx));
  LYNX_ASSIGN_OR_RETURN(
      const std::span<float> logits,
      expert_rows_.Gather(
          std::span(router_logits_).first(static_cast<size_t>(rows * spec_.experts)), sum));
  const auto planned = static_cast<int32_t>(std::ssize(logits) / spec_.experts);
  if (router_override_ != nullptr) {
    router_override_->Replace(layer, planned, spec_.experts, logits);
  }
  const auto began = std::chrono::steady_clock::now();
  planner_.MakePlan(
      {.logits = logits,
       .rows = planned,
       .experts = spec_.experts,
       .top_k = spec_.experts_per_token,
       .layer = layer,
       .gate = spec_.gate,
       .bias = weights.ranking_bias.host(),
       .phase = phase,
       .policies = policies,
       .placement = weights.table.placement().ranks > 1 ? &weights.table.placement() : nullptr},
      plan_);
  plan_seconds_ = std::chrono::duration<float>(std::chrono::steady_clock::now() - began).count();
  if (history_ != nullptr) history_->Record(layer, plan_.active());
  ChooseParts(weights.table);
  LYNX_ASSIGN_OR_RETURN(const ExpertRows::Taken taken,
                        expert_rows_.Dispatch(x_, plan_, part_of_, y));
  const Assignments assigned = Assign(taken);
  LYNX_RETURN_IF_ERROR(
      kernels::ExpertFfn({.x = taken.x,
                          .experts = weights.experts.data(),
                          .ids = assigned.ids,
                          .weights = assigned.weights,
                          .y = taken.y,
                          .sums = sums,
                          .rows = assigned.rows,
                          .hidden = spec_.hidden_size,
                          .intermediate = spec_.expert_intermediate_size,
                          .expert_count = static_cast<int64_t>(weights.experts.size()),
                          .top_k = plan_.top_k(),
                          .x_stride = x_.stride(),
                          .y_stride = spec_.hidden_size,
                          .x_dtype = x_.dtype(),
                          .clamp = spec_.expert_clamp,
                          .scale_input = spec_.gate.scales_input},
                         workspace_, ctx));
  return expert_rows_.Combine(y);
}

absl::Status FeedForwardBlock::WeighShared(const FeedForwardWeights& weights, int64_t rows,
                                           const kernels::ExecContext& ctx) {
  if (weights.shared_gate.data == nullptr) {
    std::fill_n(dense_weights_.begin(), rows, spec_.residual_multiplier);
    return absl::OkStatus();
  }
  LYNX_RETURN_IF_ERROR(
      kernels::Gemm(Projection(x_, weights.shared_gate, {}, rows, dense_weights_.data()), ctx));
  return kernels::GateWeights(
      {.weights = dense_weights_.data(), .rows = rows, .scale = spec_.residual_multiplier}, ctx);
}

absl::Status FeedForwardBlock::RunDense(const kernels::ExpertWeights& mlp, int64_t rows,
                                        int64_t intermediate, float* y,
                                        const kernels::ExecContext& ctx) {
  return kernels::ExpertFfn({.x = x_.data(),
                             .experts = &mlp,
                             .ids = dense_ids_.data(),
                             .weights = dense_weights_.data(),
                             .y = y,
                             .rows = rows,
                             .hidden = spec_.hidden_size,
                             .intermediate = intermediate,
                             .expert_count = 1,
                             .top_k = 1,
                             .x_stride = x_.stride(),
                             .y_stride = spec_.hidden_size,
                             .x_dtype = x_.dtype()},
                            workspace_, ctx);
}

}  // namespace lynx::model
