#include <algorithm>

#include "common/base/status_macros.h"
#include "common/model/families/family.h"
#include "common/model/families/shared_config.h"
#include "common/model/families/shared_weights.h"

// Qwen1.5-MoE, Qwen2-57B-A14B and Qwen3-MoE: any layer may be dense; the older have biases and a
// shared expert with a gate of its own, the newer head norms.
namespace lynx::model {
namespace {

absl::Status ReadCommon(const ModelConfig& config, ModelSpec& spec) {
  LYNX_RETURN_IF_ERROR(ReadRope(config, 10000.0, spec));
  LYNX_RETURN_IF_ERROR(ReadExperts(config, "moe_intermediate_size", spec));
  LYNX_RETURN_IF_ERROR(ReadSoftmaxGate(config, spec));
  return ReadSparseLayers(config, spec);
}

// Of the older: in every other one of the first `max_window_layers` unless `layer_types` says
// which.
absl::Status ReadWindows(const ModelConfig& config, ModelSpec& spec) {
  LYNX_ASSIGN_OR_RETURN(const int32_t window, ReadSwitchedWindow(config));
  LYNX_ASSIGN_OR_RETURN(const int32_t last, config.CountOr("max_window_layers", 28));
  for (int32_t i = 0; i < std::min(last, spec.layers); i += 2) {
    spec.attention[static_cast<size_t>(i)].reach.window = window;
  }
  return ReadLayerTypes(config, "sliding_attention", {.window = window}, spec);
}

absl::Status ReadQwen2(const ModelConfig& config, ModelSpec& spec) {
  LYNX_ASSIGN_OR_RETURN(spec.qkv_bias, config.Flag("qkv_bias", true));
  LYNX_RETURN_IF_ERROR(ReadWindows(config, spec));
  LYNX_RETURN_IF_ERROR(ReadCommon(config, spec));
  if (spec.has_moe()) {
    LYNX_ASSIGN_OR_RETURN(spec.shared_intermediate_size,
                          config.Size("shared_expert_intermediate_size"));
    spec.shared_gate = true;
  }
  return absl::OkStatus();
}

absl::Status ReadQwen3(const ModelConfig& config, ModelSpec& spec) {
  LYNX_RETURN_IF_ERROR(ReadAttentionBias(config, false, spec));
  spec.query_key_norm = QueryKeyNorm::kPerHead;
  LYNX_ASSIGN_OR_RETURN(const int32_t window, ReadSwitchedWindow(config));
  SetWindow(window, spec);
  return ReadCommon(config, spec);
}

void Bind(const ModelSpec& spec, WeightBinder& binder, ModelWeights& weights) {
  BindDecoder(spec, binder, weights,
              [&](FeedForwardKind kind, const std::string& prefix, LayerWeights& layer) {
                FeedForwardWeights& feed_forward = layer.feed_forward;
                const std::string mlp = prefix + "mlp.";
                BindAttention(spec, prefix, binder, layer);
                if (kind == FeedForwardKind::kDense) {
                  BindDenseMlp(spec, prefix, binder, feed_forward);
                  return;
                }
                BindExperts(spec, mlp, "gate", {}, binder, feed_forward);
                if (spec.shared_intermediate_size == 0) return;
                feed_forward.shared =
                    binder.TakeMlp(mlp + "shared_expert.", spec.hidden_size,
                                   spec.shared_intermediate_size, binder.shard().shared_columns);
                feed_forward.shared_gate =
                    binder.TakeMatrix(mlp + "shared_expert_gate.weight", 1, spec.hidden_size);
              });
}

}  // namespace

const Family kQwen2Moe = {"qwen2_moe", ReadQwen2, Bind};
const Family kQwen3Moe = {"qwen3_moe", ReadQwen3, Bind};

}  // namespace lynx::model
