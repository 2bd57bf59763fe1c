#include "common/base/status_macros.h"
#include "common/model/families/family.h"
#include "common/model/families/shared_config.h"
#include "common/model/families/shared_weights.h"

// Dense decoders: Llama 2 and 3, Mistral, and Qwen 2 and 3, which differ in biases, head norms
// and windows.
namespace lynx::model {
namespace {

absl::Status ReadDense(const ModelConfig& config, ModelSpec& spec) {
  MakeAllLayers(FeedForwardKind::kDense, spec);
  return ReadRope(config, 10000.0, spec);
}

absl::Status ReadLlama(const ModelConfig& config, ModelSpec& spec) {
  LYNX_RETURN_IF_ERROR(ReadAttentionBias(config, false, spec));
  LYNX_ASSIGN_OR_RETURN(const bool mlp_bias, config.Flag("mlp_bias", false));
  if (mlp_bias) return config.Unserved("mlp_bias", "MLPs with biases are not served");
  LYNX_RETURN_IF_ERROR(RefuseWindow(config));
  return ReadDense(config, spec);
}

absl::Status ReadMistral(const ModelConfig& config, ModelSpec& spec) {
  LYNX_ASSIGN_OR_RETURN(const int32_t window, ReadWindow(config, 4096));
  SetWindow(window, spec);
  LYNX_RETURN_IF_ERROR(ReadLayerTypes(config, "sliding_attention", {.window = window}, spec));
  return ReadDense(config, spec);
}

absl::Status ReadQwen2(const ModelConfig& config, ModelSpec& spec) {
  spec.qkv_bias = true;
  LYNX_RETURN_IF_ERROR(ReadLateWindows(config, spec));
  return ReadDense(config, spec);
}

absl::Status ReadQwen3(const ModelConfig& config, ModelSpec& spec) {
  spec.query_key_norm = QueryKeyNorm::kPerHead;
  LYNX_RETURN_IF_ERROR(ReadLateWindows(config, spec));
  LYNX_RETURN_IF_ERROR(ReadAttentionBias(config, false, spec));
  return ReadDense(config, spec);
}

void BindDense(const ModelSpec& spec, WeightBinder& binder, ModelWeights& weights) {
  BindDecoder(spec, binder, weights,
              [&](FeedForwardKind, const std::string& prefix, LayerWeights& layer) {
                BindAttention(spec, prefix, binder, layer);
                BindDenseMlp(spec, prefix, binder, layer.feed_forward);
              });
}

}  // namespace

const Family kLlama = {"llama", ReadLlama, BindDense};
const Family kMistral = {"mistral", ReadMistral, BindDense};
const Family kQwen2 = {"qwen2", ReadQwen2, BindDense};
const Family kQwen3 = {"qwen3", ReadQwen3, BindDense};

}  // namespace lynx::model
