#include "common/base/status_macros.h"
#include "common/model/families/family.h"
#include "common/model/families/shared_config.h"
#include "common/model/families/shared_weights.h"

// GLM-4.5 and GLM-4.5-Air: grouped-query attention that rotates a part of each head, before
// DeepSeek-V3's experts.
namespace lynx::model {
namespace {

absl::Status Read(const ModelConfig& config, ModelSpec& spec) {
  LYNX_RETURN_IF_ERROR(ReadRotaryFactor(config, 0.5, spec));
  LYNX_RETURN_IF_ERROR(ReadRope(config, 10000.0, spec));
  LYNX_ASSIGN_OR_RETURN(spec.qkv_bias, config.Flag("attention_bias", false));
  LYNX_ASSIGN_OR_RETURN(const bool norm, config.Flag("use_qk_norm", false));
  if (norm) spec.query_key_norm = QueryKeyNorm::kPerHead;
  LYNX_RETURN_IF_ERROR(ReadExperts(config, "moe_intermediate_size", spec));
  LYNX_RETURN_IF_ERROR(ReadFirstLayersDense(config, 1, spec));
  LYNX_RETURN_IF_ERROR(ReadSigmoidGate(config, {}, spec));
  return ReadSharedExperts(config, 1, spec);
}

void Bind(const ModelSpec& spec, WeightBinder& binder, ModelWeights& weights) {
  BindDecoder(spec, binder, weights,
              [&](FeedForwardKind kind, const std::string& prefix, LayerWeights& layer) {
                BindAttention(spec, prefix, binder, layer);
                BindDeepseekFeedForward(spec, kind, prefix, binder, layer.feed_forward);
              });
  IgnorePredictionLayers(spec, binder);
}

}  // namespace

const Family kGlm4Moe = {
    .model_type = "glm4_moe", .read = Read, .bind = Bind, .rms_norm_epsilon = 1e-5};

}  // namespace lynx::model
