#include <functional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/model/families/family.h"
#include "common/model/families/shared_config.h"
#include "common/model/families/shared_weights.h"
#include "kernels/rope/rope_scaling.h"

// DeepSeek-V2, -Coder-V2 and -V2-Lite; DeepSeek-V3 and -R1: multi-head latent attention, and routed
// experts beside shared ones. The two differ in their gates.
namespace lynx::model {
namespace {

absl::Status ReadAttention(const ModelConfig& config, ModelSpec& spec) {
  LYNX_ASSIGN_OR_RETURN(const bool bias, config.Flag("attention_bias", false));
  if (bias) return config.Unserved("attention_bias", "biases of latent attention are not served");
  LYNX_RETURN_IF_ERROR(ReadRope(config, 10000.0, spec));
  const kernels::RopeScaling& scaling = spec.rope_scaling;
  if (scaling.kind == kernels::RopeScalingKind::kYarn && scaling.mscale_all_dim != 0) {
    const double mscale = kernels::YarnMscale(scaling.factor, scaling.mscale_all_dim);
    spec.attention_scale *= static_cast<float>(mscale * mscale);
  }
  return absl::OkStatus();
}

// Everything but the gate; both numbers for a config that has none.
absl::Status ReadCommon(const ModelConfig& config, int32_t dense_layers, int32_t shared_experts,
                        ModelSpec& spec) {
  LYNX_RETURN_IF_ERROR(ReadAttention(config, spec));
  LYNX_RETURN_IF_ERROR(ReadExperts(config, "moe_intermediate_size", spec));
  LYNX_RETURN_IF_ERROR(ReadFirstLayersDense(config, dense_layers, spec));
  return ReadSharedExperts(config, shared_experts, spec);
}

// Refuses another value of `key` than the family's own.
absl::Status Expect(const ModelConfig& config, const char* key, const char* own) {
  LYNX_ASSIGN_OR_RETURN(const std::string value, config.Text(key, own));
  if (value == own) return absl::OkStatus();
  return config.Unserved(key, absl::StrCat("served of this family is ", own));
}

absl::Status ReadV2(const ModelConfig& config, ModelSpec& spec) {
  LYNX_RETURN_IF_ERROR(ReadCommon(config, /*dense_layers=*/0, /*shared_experts=*/2, spec));
  LYNX_RETURN_IF_ERROR(Expect(config, "scoring_func", "softmax"));
  LYNX_ASSIGN_OR_RETURN(const bool renormalise, config.Flag("norm_topk_prob", false));
  if (renormalise) {
    spec.notes.push_back(
        absl::StrCat(config.file(), ": norm_topk_prob is not used in this family, as transformers ",
                     "does not: experts' weights are scaled, never renormalised"));
  }
  spec.gate.rule = moe::Gate::Rule::kKeepMass;
  LYNX_ASSIGN_OR_RETURN(const double scale, config.Positive("routed_scaling_factor", 1.0));
  spec.gate.scale = static_cast<float>(scale);
  LYNX_ASSIGN_OR_RETURN(const std::string method, config.Text("topk_method", "greedy"));
  if (method == "greedy") return absl::OkStatus();
  if (method != "group_limited_greedy") {
    return config.Unserved("topk_method", "served are greedy and group_limited_greedy");
  }
  return ReadExpertGroups(config, /*groups=*/1, /*groups_kept=*/1, spec);
}

absl::Status ReadV3(const ModelConfig& config, ModelSpec& spec) {
  LYNX_RETURN_IF_ERROR(ReadCommon(config, /*dense_layers=*/3, /*shared_experts=*/1, spec));
  LYNX_RETURN_IF_ERROR(Expect(config, "scoring_func", "sigmoid"));
  LYNX_RETURN_IF_ERROR(Expect(config, "topk_method", "noaux_tc"));
  LYNX_ASSIGN_OR_RETURN(const bool interleaved, config.Flag("rope_interleave", true));
  if (!interleaved) return config.Unserved("rope_interleave", "only interleaved RoPE is served");
  return ReadSigmoidGate(config, {.groups = 8, .groups_kept = 4, .scale = 2.5}, spec);
}

// For rows of heads whose last part RoPE turns.
std::function<RowSource(RowSource)> HalfSplitEnds(int64_t head_dim, int64_t rope_dim) {
  return [=](RowSource rows) {
    return HalfSplitHeads(std::move(rows), head_dim, rope_dim, head_dim - rope_dim);
  };
}

void BindAttention(const ModelSpec& spec, const std::string& prefix, WeightBinder& binder,
                   LatentAttentionWeights& weights) {
  const int64_t hidden = spec.hidden_size;
  const int64_t heads = spec.query_heads;
  const int64_t latent = spec.kv_lora_rank;
  const int64_t kv_width = latent + spec.qk_rope_head_dim;
  const std::string attention = prefix + "self_attn.";
  weights.input_norm = binder.TakeVector(prefix + "input_layernorm.weight", hidden);
  int64_t q_in = hidden;
  std::string q_name = "q_proj.weight";
  if (spec.q_lora_rank > 0) {
    weights.q_a = binder.TakeMatrix(attention + "q_a_proj.weight", spec.q_lora_rank, hidden);
    weights.q_a_norm = binder.TakeVector(attention + "q_a_layernorm.weight", spec.q_lora_rank);
    q_in = spec.q_lora_rank;
    q_name = "q_b_proj.weight";
  }
  weights.q = binder.TakeMatrix(attention + q_name, heads * spec.head_dim, q_in,
                                MatrixPart::Rows(binder.shard().query_heads, spec.head_dim),
                                HalfSplitEnds(spec.head_dim, spec.qk_rope_head_dim));
  weights.kv_a = binder.TakeMatrix(attention + "kv_a_proj_with_mqa.weight", kv_width, hidden, {},
                                   HalfSplitEnds(kv_width, spec.qk_rope_head_dim));
  weights.kv_a_norm = binder.TakeVector(attention + "kv_a_layernorm.weight", latent);
  WeightBinder::SplitHeads kv_b = binder.TakeSplitHeads(
      attention + "kv_b_proj.weight", heads, spec.qk_nope_head_dim, spec.v_head_dim, latent);
  weights.k_up = std::move(kv_b.first_transposed);
  weights.v_up = std::move(kv_b.second);
  weights.o = binder.TakeMatrix(attention + "o_proj.weight", hidden, heads * spec.v_head_dim,
                                MatrixPart::Columns(binder.shard().query_heads, spec.v_head_dim));
}

void Bind(const ModelSpec& spec, WeightBinder& binder, ModelWeights& weights) {
  BindDecoder(spec, binder, weights,
              [&](FeedForwardKind kind, const std::string& prefix, LayerWeights& layer) {
                BindAttention(spec, prefix, binder, layer.latent_attention);
                layer.feed_forward.input_norm =
                    binder.TakeVector(prefix + "post_attention_layernorm.weight", spec.hidden_size);
                BindDeepseekFeedForward(spec, kind, prefix, binder, layer.feed_forward);
              });
  IgnorePredictionLayers(spec, binder);
}

}  // namespace

const Family kDeepseekV2 = {
    .model_type = "deepseek_v2", .read = ReadV2, .bind = Bind, .has_latents = true};
const Family kDeepseekV3 = {
    .model_type = "deepseek_v3", .read = ReadV3, .bind = Bind, .has_latents = true};

}  // namespace lynx::model
