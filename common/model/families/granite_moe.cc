#include "common/base/status_macros.h"
#include "common/model/families/family.h"
#include "common/model/families/shared_config.h"
#include "common/model/families/shared_weights.h"

// Granite 3 MoE (granitemoe, and granitemoeshared with a shared expert): four multipliers, and
// experts of a layer in one tensor.
namespace lynx::model {
namespace {

absl::Status ReadMultipliers(const ModelConfig& config, ModelSpec& spec) {
  LYNX_ASSIGN_OR_RETURN(const double embedding, config.Positive("embedding_multiplier", 1));
  LYNX_ASSIGN_OR_RETURN(const double attention, config.Positive("attention_multiplier", 1));
  LYNX_ASSIGN_OR_RETURN(const double residual, config.Positive("residual_multiplier", 1));
  LYNX_ASSIGN_OR_RETURN(const double logits, config.Positive("logits_scaling", 1));
  spec.embedding_multiplier = static_cast<float>(embedding);
  spec.attention_scale = static_cast<float>(attention);
  spec.residual_multiplier = static_cast<float>(residual);
  spec.logits_multiplier = static_cast<float>(1 / logits);
  return absl::OkStatus();
}

absl::Status Read(const ModelConfig& config, ModelSpec& spec) {
  LYNX_RETURN_IF_ERROR(ReadMultipliers(config, spec));
  MakeAllLayers(FeedForwardKind::kMoe, spec);
  LYNX_RETURN_IF_ERROR(ReadExperts(config, "intermediate_size", spec));
  spec.gate.rule = moe::Gate::Rule::kRenormalise;
  spec.gate.scale = spec.residual_multiplier;
  LYNX_RETURN_IF_ERROR(ReadAttentionBias(config, false, spec));
  return ReadRope(config, 10000.0, spec);
}

absl::Status ReadShared(const ModelConfig& config, ModelSpec& spec) {
  LYNX_RETURN_IF_ERROR(Read(config, spec));
  LYNX_ASSIGN_OR_RETURN(spec.shared_intermediate_size,
                        config.CountOr("shared_intermediate_size", 0));
  return absl::OkStatus();
}

void Bind(const ModelSpec& spec, WeightBinder& binder, ModelWeights& weights) {
  const int64_t hidden = spec.hidden_size;
  BindDecoder(
      spec, binder, weights, [&](FeedForwardKind, const std::string& prefix, LayerWeights& layer) {
        FeedForwardWeights& feed_forward = layer.feed_forward;
        const std::string moe = prefix + "block_sparse_moe.";
        BindAttention(spec, prefix, binder, layer);
        feed_forward.router = binder.TakeMatrix(moe + "router.layer.weight", spec.experts, hidden);
        feed_forward.experts =
            binder.TakeFusedMlps(moe + "input_linear.weight", moe + "output_linear.weight",
                                 spec.experts, hidden, spec.expert_intermediate_size);
        if (spec.shared_intermediate_size > 0) {
          const std::string shared = prefix + "shared_mlp.";
          feed_forward.shared = binder.TakeFusedMlp(
              shared + "input_linear.weight", shared + "output_linear.weight", hidden,
              spec.shared_intermediate_size, binder.shard().shared_columns);
        }
      });
}

}  // namespace

const Family kGraniteMoe = {"granitemoe", Read, Bind};
const Family kGraniteMoeShared = {"granitemoeshared", ReadShared, Bind};

}  // namespace lynx::model
