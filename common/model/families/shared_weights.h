#pragma once

#include <functional>
#include <string>

#include "common/model/model_spec.h"
#include "common/model/model_weights.h"
#include "common/model/weight_binder.h"

// What several families name alike.
namespace lynx::model {

// Embedding, final norm and output head; then every layer, by `bind_layer`, to which `prefix` is
// "model.layers.<index>.".
void BindDecoder(const ModelSpec& spec, WeightBinder& binder, ModelWeights& weights,
                 const std::function<void(FeedForwardKind kind, const std::string& prefix,
                                          LayerWeights& layer)>& bind_layer);

// Both norms and attention of a layer: self_attn.{q,k,v,o}_proj, with the biases and norms of
// queries and keys that the spec has.
void BindAttention(const ModelSpec& spec, const std::string& prefix, WeightBinder& binder,
                   LayerWeights& layer);

// Of a dense layer: mlp.{gate,up,down}_proj.
void BindDenseMlp(const ModelSpec& spec, const std::string& prefix, WeightBinder& binder,
                  FeedForwardWeights& weights);

// Router <prefix><router>.weight and experts <prefix>experts.*, one Linear per expert and
// projection or fused per layer.
void BindExperts(const ModelSpec& spec, const std::string& prefix, const char* router,
                 const MlpNames& names, WeightBinder& binder, FeedForwardWeights& weights);

// Of a layer as DeepSeek names them: mlp.gate with a ranking bias if the spec has one,
// mlp.experts.*, mlp.shared_experts; or mlp.* where it is dense.
void BindDeepseekFeedForward(const ModelSpec& spec, FeedForwardKind kind, const std::string& prefix,
                             WeightBinder& binder, FeedForwardWeights& weights);

// Layers behind the last, which predict further tokens, are not used.
void IgnorePredictionLayers(const ModelSpec& spec, WeightBinder& binder);

}  // namespace lynx::model
