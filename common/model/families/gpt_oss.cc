#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/model/families/family.h"
#include "common/model/families/shared_config.h"
#include "common/model/families/shared_weights.h"

// gpt-oss-20b and -120b: every other layer attends to a window, softmax has sinks, and experts have
// biases and a clamped gate.
namespace lynx::model {
namespace {

absl::Status Read(const ModelConfig& config, ModelSpec& spec) {
  MakeAllLayers(FeedForwardKind::kMoe, spec);
  LYNX_RETURN_IF_ERROR(ReadExperts(config, "intermediate_size", spec));
  LYNX_ASSIGN_OR_RETURN(const int32_t window, ReadWindow(config, 128));
  if (window == 0) return config.Wrong("sliding_window", "a positive integer");
  for (size_t i = 0; i < spec.attention.size(); i += 2) spec.attention[i].reach.window = window;
  LYNX_RETURN_IF_ERROR(ReadLayerTypes(config, "sliding_attention", {.window = window}, spec));
  LYNX_RETURN_IF_ERROR(ReadAttentionBias(config, true, spec));
  spec.sinks = true;
  spec.gate.rule = moe::Gate::Rule::kRenormalise;
  spec.router_bias = true;
  spec.expert_bias = true;
  LYNX_ASSIGN_OR_RETURN(const double clamp, config.Positive("swiglu_limit", 7.0));
  spec.expert_clamp = static_cast<float>(clamp);
  constexpr double kAlpha = 1.702;  // Of ExpertFfn.
  LYNX_ASSIGN_OR_RETURN(const double alpha, config.Positive("swiglu_alpha", kAlpha));
  if (alpha != kAlpha) {
    return config.Unserved("swiglu_alpha", absl::StrCat("served is ", kAlpha));
  }
  spec.rope_scaling = {.kind = kernels::RopeScalingKind::kYarn,
                       .factor = 32,
                       .original_positions = 4096,
                       .truncate = false};
  return ReadRope(config, 150000.0, spec);
}

void BindExpertBiases(const ModelSpec& spec, const std::string& experts, WeightBinder& binder,
                      FeedForwardWeights& weights) {
  const int64_t hidden = spec.hidden_size;
  const int64_t intermediate = spec.expert_intermediate_size;
  const std::vector<float> gate_up =
      binder.TakeVectors(experts + "gate_up_proj_bias", spec.experts, 2 * intermediate);
  weights.down_biases = binder.TakeVectors(experts + "down_proj_bias", spec.experts, hidden);
  if (gate_up.empty() || weights.down_biases.empty() || weights.experts.empty()) return;
  const RankShard& shard = binder.shard();
  const ShardRange& columns = shard.expert_columns;
  const int64_t packed = kernels::GateUpOutputs(columns.size());
  std::vector<float> biases(static_cast<size_t>(spec.experts * packed), 0.0f);
  for (int64_t e = 0; e < spec.experts; ++e) {
    // Gate and up in turns.
    const float* from = gate_up.data() + (e * intermediate + columns.begin) * 2;
    float* to = biases.data() + e * packed;
    for (int64_t i = 0; i < columns.size(); ++i) {
      to[kernels::GateOutput(i)] = from[2 * i];
      to[kernels::GateOutput(i) + kernels::kGateOutputsPerPanel] = from[2 * i + 1];
    }
  }
  weights.gate_up_biases = std::move(biases);
  // Added once, by one of the ranks that share the expert.
  if (columns.begin > 0) weights.down_biases = {};
  for (size_t slot = 0; slot < weights.experts.size(); ++slot) {
    weights.SetBiases(shard.experts[slot], weights.experts[slot]);
  }
}

void Bind(const ModelSpec& spec, WeightBinder& binder, ModelWeights& weights) {
  BindDecoder(
      spec, binder, weights, [&](FeedForwardKind, const std::string& prefix, LayerWeights& layer) {
        FeedForwardWeights& feed_forward = layer.feed_forward;
        const std::string router = prefix + "mlp.router.";
        const std::string experts = prefix + "mlp.experts.";
        BindAttention(spec, prefix, binder, layer);
        layer.attention.sinks = binder.TakeVectorPart(prefix + "self_attn.sinks", spec.query_heads,
                                                      binder.shard().query_heads);
        feed_forward.router = binder.TakeMatrix(router + "weight", spec.experts, spec.hidden_size);
        feed_forward.router_bias = binder.TakeVector(router + "bias", spec.experts);
        const std::string gate_up = experts + "gate_up_proj";
        const std::string down = experts + "down_proj";
        feed_forward.experts =
            spec.mxfp4_experts
                ? binder.TakeMxfp4Mlps(gate_up, down, spec.experts, spec.hidden_size,
                                       spec.expert_intermediate_size)
                : binder.TakeTransposedMlps(gate_up, down, spec.experts, spec.hidden_size,
                                            spec.expert_intermediate_size, /*interleaved=*/true);
        BindExpertBiases(spec, experts, binder, feed_forward);
      });
}

}  // namespace

const Family kGptOss = {.model_type = "gpt_oss",
                        .read = Read,
                        .bind = Bind,
                        .rms_norm_epsilon = 1e-5,
                        .has_mxfp4 = true};

}  // namespace lynx::model
