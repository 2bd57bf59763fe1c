#include "common/model/feed_forward_block.h"

#include <algorithm>
#include <chrono>
#include <span>

#include "common/base/status_macros.h"
#include "kernels/gemm/gemm.h"
#include "kernels/norm/rms_norm.h"

namespace lynx::model {

FeedForwardBlock::FeedForwardBlock(const ModelSpec& spec, int64_t max_rows, DType compute_dtype,
                                   RouterOverride* router_override)
    : spec_(spec),
      router_override_(router_override),
      x_(max_rows, spec.hidden_size, compute_dtype),
      router_logits_(static_cast<size_t>(max_rows * spec.experts)),
      planner_(static_cast<int32_t>(max_rows), std::max(1, spec.experts),
               std::max(1, spec.experts_per_token)),
      plan_(static_cast<int32_t>(max_rows), std::max(1, spec.experts),
            std::max(1, spec.experts_per_token)),
      workspace_(max_rows, std::max(1, spec.experts_per_token), std::max(1, spec.experts),
                 spec.hidden_size,
                 std::max(spec.dense_intermediate_size, spec.expert_intermediate_size),
                 compute_dtype),
      dense_ids_(static_cast<size_t>(max_rows), 0),
      dense_weights_(static_cast<size_t>(max_rows), 1.0f) {}

absl::Status FeedForwardBlock::Run(const FeedForwardWeights& weights, int64_t rows, int32_t layer,
                                   moe::Phase phase, std::span<const moe::Policy* const> policies,
                                   float* hidden, const kernels::ExecContext& ctx) {
  const int64_t hidden_size = spec_.hidden_size;
  LYNX_RETURN_IF_ERROR(kernels::RmsNorm({.x = hidden,
                                         .gain = weights.input_norm.data(),
                                         .y = x_.data(),
                                         .rows = rows,
                                         .hidden = hidden_size,
                                         .x_stride = hidden_size,
                                         .y_stride = x_.stride(),
                                         .epsilon = spec_.rms_norm_epsilon,
                                         .y_dtype = x_.dtype()},
                                        ctx));
  kernels::ExpertFfnArgs args{.x = x_.data(),
                              .experts = weights.experts.data(),
                              .ids = dense_ids_.data(),
                              .weights = dense_weights_.data(),
                              .y = hidden,
                              .rows = rows,
                              .hidden = hidden_size,
                              .intermediate = spec_.dense_intermediate_size,
                              .expert_count = static_cast<int64_t>(weights.experts.size()),
                              .top_k = 1,
                              .x_stride = x_.stride(),
                              .y_stride = hidden_size,
                              .x_dtype = x_.dtype()};
  if (weights.router.data != nullptr) {
    LYNX_RETURN_IF_ERROR(kernels::Gemm({.x = x_.data(),
                                        .w = weights.router,
                                        .y = router_logits_.data(),
                                        .rows = rows,
                                        .x_stride = x_.stride(),
                                        .y_stride = spec_.experts,
                                        .x_dtype = x_.dtype()},
                                       ctx));
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
                       .phase = phase,
                       .policies = policies},
                      plan_);
    plan_seconds_ = std::chrono::duration<float>(std::chrono::steady_clock::now() - began).count();
    args.ids = plan_.ids().data();
    args.weights = plan_.weights().data();
    args.intermediate = spec_.expert_intermediate_size;
    args.top_k = plan_.top_k();
  }
  return kernels::ExpertFfn(args, workspace_, ctx);
}

}  // namespace lynx::model
