#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/model/model_config.h"
#include "common/model/model_spec.h"

// What several families spell alike in config.json.
namespace lynx::model {

// RoPE of spec.rotary_dim elements: `rope_theta` beside `rope_scaling`, or all of it inside
// `rope_parameters`. Where neither is there, spec.rope_scaling stays as the family has set it.
absl::Status ReadRope(const ModelConfig& config, double default_theta, ModelSpec& spec);

// `attention_bias`: of all four projections of attention, or of none.
absl::Status ReadAttentionBias(const ModelConfig& config, bool absent, ModelSpec& spec);

// `sliding_window`; a null is no window, 0. `absent` where nothing is said.
absl::StatusOr<int32_t> ReadWindow(const ModelConfig& config, int32_t absent);
// The same where `use_sliding_window` switches it on.
absl::StatusOr<int32_t> ReadSwitchedWindow(const ModelConfig& config);

// Every layer attends to a window; 0: to all.
void SetWindow(int32_t window, ModelSpec& spec);

// Where there is a list `layer_types`: `local` is that reach, full_attention all, whatever the
// layers have been given before.
absl::Status ReadLayerTypes(const ModelConfig& config, const std::string& local,
                            const kv::Reach& reach, ModelSpec& spec);

// The window that is switched on, in layers from `max_window_layers` on unless `layer_types` says
// which.
absl::Status ReadLateWindows(const ModelConfig& config, ModelSpec& spec);

// Refuses a window in a family whose forward pass has none.
absl::Status RefuseWindow(const ModelConfig& config);

// experts, experts_per_token and expert_intermediate_size; `size_key` names the last. No experts at
// all is no error: the model is dense then.
absl::Status ReadExperts(const ModelConfig& config, const char* size_key, ModelSpec& spec);

// Softmax over all experts, then top-k, by norm_topk_prob renormalised.
absl::Status ReadSoftmaxGate(const ModelConfig& config, ModelSpec& spec);

// Which layers are MoE, by the rule that the Qwen families share.
absl::Status ReadSparseLayers(const ModelConfig& config, ModelSpec& spec);

// The first `first_k_dense_replace` layers are dense; of the others, each `moe_layer_freq`-th is
// MoE.
absl::Status ReadFirstLayersDense(const ModelConfig& config, int32_t absent, ModelSpec& spec);

// What transformers takes where a config says nothing.
struct SigmoidGateDefaults {
  int32_t groups = 1;
  int32_t groups_kept = 1;
  double scale = 1;
};

// DeepSeek-V3's gate: sigmoid scores that a bias of each expert ranks, in groups of experts; by
// norm_topk_prob renormalised, then scaled by routed_scaling_factor.
absl::Status ReadSigmoidGate(const ModelConfig& config, const SigmoidGateDefaults& absent,
                             ModelSpec& spec);
// n_group and topk_group.
absl::Status ReadExpertGroups(const ModelConfig& config, int32_t groups, int32_t groups_kept,
                              ModelSpec& spec);

// `n_shared_experts` of the routed ones' width, which are one MLP.
absl::Status ReadSharedExperts(const ModelConfig& config, int32_t absent, ModelSpec& spec);

// spec.rotary_dim, by `partial_rotary_factor`.
absl::Status ReadRotaryFactor(const ModelConfig& config, double absent, ModelSpec& spec);

// Makes the layers that `key` lists MoE or dense; InvalidArgument unless it is a list of layers.
absl::Status SetListedLayers(const ModelConfig& config, const char* key, FeedForwardKind kind,
                             ModelSpec& spec);
void MakeAllLayers(FeedForwardKind kind, ModelSpec& spec);

}  // namespace lynx::model
