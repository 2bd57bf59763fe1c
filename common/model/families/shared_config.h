#pragma once

#include "absl/status/status.h"
#include "common/model/model_config.h"
#include "common/model/model_spec.h"

// What several families spell alike in config.json.
namespace lynx::model {

// RoPE of spec.rotary_dim elements: `rope_theta` beside `rope_scaling`, which may be absent, or all
// of it inside `rope_parameters`.
absl::Status ReadRope(const ModelConfig& config, double default_theta, ModelSpec& spec);

// `attention_bias`: of all four projections of attention, or of none.
absl::Status ReadAttentionBias(const ModelConfig& config, bool absent, ModelSpec& spec);

// `layer_types`: full_attention, or sliding_attention over `sliding_window`; in turns, from the
// latter on, where it is absent.
absl::Status ReadLayerTypes(const ModelConfig& config, ModelSpec& spec);

// Refuses a sliding window that is switched on.
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
absl::Status ReadFirstLayersDense(const ModelConfig& config, ModelSpec& spec);

// DeepSeek-V3's gate: sigmoid scores that a bias of each expert ranks, in groups of experts; by
// norm_topk_prob renormalised, then scaled by routed_scaling_factor.
absl::Status ReadSigmoidGate(const ModelConfig& config, ModelSpec& spec);
// n_group and topk_group.
absl::Status ReadExpertGroups(const ModelConfig& config, ModelSpec& spec);

// `n_shared_experts` of the routed ones' width, which are one MLP.
absl::Status ReadSharedExperts(const ModelConfig& config, ModelSpec& spec);

// spec.rotary_dim, by `partial_rotary_factor`.
absl::Status ReadRotaryFactor(const ModelConfig& config, double absent, ModelSpec& spec);

// Makes the layers that `key` lists MoE or dense; InvalidArgument unless it is a list of layers.
absl::Status SetListedLayers(const ModelConfig& config, const char* key, FeedForwardKind kind,
                             ModelSpec& spec);
void MakeAllLayers(FeedForwardKind kind, ModelSpec& spec);

}  // namespace lynx::model
