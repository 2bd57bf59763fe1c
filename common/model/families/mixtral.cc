#include "common/base/status_macros.h"
#include "common/model/families/family.h"
#include "common/model/families/shared_config.h"
#include "common/model/families/shared_weights.h"

// Mixtral 8x7B and 8x22B. The chosen experts' weights always sum to 1.
namespace lynx::model {
namespace {

absl::Status Read(const ModelConfig& config, ModelSpec& spec) {
  MakeAllLayers(FeedForwardKind::kMoe, spec);
  LYNX_RETURN_IF_ERROR(ReadExperts(config, "intermediate_size", spec));
  LYNX_ASSIGN_OR_RETURN(const int32_t window, ReadWindow(config, 0));
  SetWindow(window, spec);
  spec.gate.rule = moe::Gate::Rule::kRenormalise;
  return ReadRope(config, 1e6, spec);
}

void Bind(const ModelSpec& spec, WeightBinder& binder, ModelWeights& weights) {
  BindDecoder(spec, binder, weights,
              [&](FeedForwardKind, const std::string& prefix, LayerWeights& layer) {
                BindAttention(spec, prefix, binder, layer);
                BindExperts(spec, prefix + "block_sparse_moe.", "gate", {"w1", "w3", "w2"}, binder,
                            layer.feed_forward);
              });
}

}  // namespace

const Family kMixtral = {
    .model_type = "mixtral", .read = Read, .bind = Bind, .rms_norm_epsilon = 1e-5};

}  // namespace lynx::model
