#include "common/model/feed_forward_block.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <span>

#include "common/base/status_macros.h"
#include "common/model/linear.h"
#include "kernels/gemm/gemm.h"

namespace lynx::model {

FeedForwardBlock::FeedForwardBlock(const ModelSpec& spec, int32_t ep, bool experts_move,
                                   int64_t max_rows, DType compute_dtype,
                                   RouterOverride* router_override)
    : spec_(spec),
      experts_move_(experts_move),
      router_override_(router_override),
      x_(max_rows, spec.hidden_size, compute_dtype),
      router_logits_(static_cast<size_t>(max_rows * spec.experts)),
      planner_(static_cast<int32_t>(max_rows), std::max(1, spec.experts),
               std::max(1, spec.experts_per_token)),
      plan_(static_cast<int32_t>(max_rows), std::max(1, spec.experts),
            std::max(1, spec.experts_per_token)),
      chooser_(spec.experts, ep),
      own_ids_(ep > 1 ? static_cast<size_t>(max_rows * spec.experts_per_token) : 0),
      own_slot_(static_cast<size_t>(spec.experts)),
      workspace_(max_rows, std::max(1, spec.experts_per_token), std::max(1, spec.experts),
                 spec.hidden_size,
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
    std::fill_n(dense_weights_.begin(), rows, spec_.residual_multiplier);
    LYNX_RETURN_IF_ERROR(
        RunDense(weights.experts.front(), rows, spec_.dense_intermediate_size, y, ctx));
    return sum.End(hidden, rows);
  }
  double* const sums = experts_move_ ? sum.BeginSummands(rows) : nullptr;
  LYNX_RETURN_IF_ERROR(RunExperts(weights, rows, layer, phase, policies, y, sums, ctx));
  if (weights.shared.down.data != nullptr) {
    LYNX_RETURN_IF_ERROR(WeighShared(weights, rows, ctx));
    LYNX_RETURN_IF_ERROR(RunDense(weights.shared, rows, spec_.shared_intermediate_size, y, ctx));
  }
  return experts_move_ ? sum.EndSummands(hidden, rows) : sum.End(hidden, rows);
}

std::span<const int32_t> FeedForwardBlock::OwnIds(const ExpertTable& table) {
  const std::span<const int32_t> ids = plan_.ids();
  const std::span<const int32_t> active = plan_.active();
  own_active_ = std::ssize(active);
  if (own_ids_.empty()) return ids;
  const std::span<const int32_t> parts = chooser_.Choose(table.placement(), active);
  own_active_ = 0;
  for (size_t i = 0; i < active.size(); ++i) {
    const bool own = parts[i] == table.part();
    own_slot_[static_cast<size_t>(active[i])] = own ? table.slot_of(active[i]) : kernels::kNoExpert;
    own_active_ += own ? 1 : 0;
  }
  for (size_t i = 0; i < ids.size(); ++i) own_ids_[i] = own_slot_[static_cast<size_t>(ids[i])];
  return std::span<const int32_t>(own_ids_).first(ids.size());
}

absl::Status FeedForwardBlock::RunExperts(const FeedForwardWeights& weights, int64_t rows,
                                          int32_t layer, moe::Phase phase,
                                          std::span<const moe::Policy* const> policies, float* y,
                                          double* sums, const kernels::ExecContext& ctx) {
  LYNX_RETURN_IF_ERROR(kernels::Gemm(
      Projection(x_, weights.router, weights.router_bias, rows, router_logits_.data()), ctx));
  const auto logits = std::span(router_logits_).first(static_cast<size_t>(rows * spec_.experts));
  if (router_override_ != nullptr) {
    router_override_->Replace(layer, static_cast<int32_t>(rows), spec_.experts, logits);
  }
  const auto began = std::chrono::steady_clock::now();
  planner_.MakePlan({.logits = logits,
                     .rows = static_cast<int32_t>(rows),
                     .experts = spec_.experts,
                     .top_k = spec_.experts_per_token,
                     .layer = layer,
                     .gate = spec_.gate,
                     .bias = weights.ranking_bias,
                     .phase = phase,
                     .policies = policies,
                     .placement = own_ids_.empty() ? nullptr : &weights.table.placement()},
                    plan_);
  plan_seconds_ = std::chrono::duration<float>(std::chrono::steady_clock::now() - began).count();
  if (history_ != nullptr) history_->Record(layer, plan_.active());
  return kernels::ExpertFfn({.x = x_.data(),
                             .experts = weights.experts.data(),
                             .ids = OwnIds(weights.table).data(),
                             .weights = plan_.weights().data(),
                             .y = y,
                             .sums = sums,
                             .rows = rows,
                             .hidden = spec_.hidden_size,
                             .intermediate = spec_.expert_intermediate_size,
                             .expert_count = static_cast<int64_t>(weights.experts.size()),
                             .top_k = plan_.top_k(),
                             .x_stride = x_.stride(),
                             .y_stride = spec_.hidden_size,
                             .x_dtype = x_.dtype(),
                             .clamp = spec_.expert_clamp,
                             .scale_input = spec_.gate.scales_input},
                            workspace_, ctx);
}

absl::Status FeedForwardBlock::WeighShared(const FeedForwardWeights& weights, int64_t rows,
                                           const kernels::ExecContext& ctx) {
  if (weights.shared_gate.data == nullptr) {
    std::fill_n(dense_weights_.begin(), rows, spec_.residual_multiplier);
    return absl::OkStatus();
  }
  LYNX_RETURN_IF_ERROR(
      kernels::Gemm(Projection(x_, weights.shared_gate, {}, rows, dense_weights_.data()), ctx));
  for (int64_t r = 0; r < rows; ++r) {
    float& weight = dense_weights_[static_cast<size_t>(r)];
    weight = spec_.residual_multiplier / (1 + std::exp(-weight));
  }
  return absl::OkStatus();
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
