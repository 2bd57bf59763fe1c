#include "common/base/status_macros.h"
#include "common/model/families/family.h"
#include "common/model/families/shared_config.h"
#include "common/model/families/shared_weights.h"

// OLMoE-1B-7B. Queries and keys are normed over all heads at once.
namespace lynx::model {
namespace {

absl::Status Read(const ModelConfig& config, ModelSpec& spec) {
  MakeAllLayers(FeedForwardKind::kMoe, spec);
  LYNX_RETURN_IF_ERROR(ReadExperts(config, "intermediate_size", spec));
  LYNX_RETURN_IF_ERROR(ReadSoftmaxGate(config, spec));
  spec.query_key_norm = QueryKeyNorm::kWholeVector;
  LYNX_RETURN_IF_ERROR(ReadAttentionBias(config, false, spec));
  if (config.Find("clip_qkv") != nullptr) {
    LYNX_ASSIGN_OR_RETURN(const double clip, config.Positive("clip_qkv", std::nullopt));
    spec.clip_qkv = static_cast<float>(clip);
  }
  return ReadRope(config, 10000.0, spec);
}

void Bind(const ModelSpec& spec, WeightBinder& binder, ModelWeights& weights) {
  BindDecoder(spec, binder, weights,
              [&](FeedForwardKind, const std::string& prefix, LayerWeights& layer) {
                BindAttention(spec, prefix, binder, layer);
                BindExperts(spec, prefix + "mlp.", "gate", {}, binder, layer.feed_forward);
              });
}

}  // namespace

const Family kOlmoe = {.model_type = "olmoe", .read = Read, .bind = Bind, .rms_norm_epsilon = 1e-5};

}  // namespace lynx::model
