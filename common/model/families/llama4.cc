#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/model/families/family.h"
#include "common/model/families/shared_config.h"
#include "common/model/families/shared_weights.h"

// The text part of Llama 4 Scout and Maverick: most layers rotate and attend to chunks, the others
// do neither; an expert's weight multiplies its input.
namespace lynx::model {
namespace {

using nlohmann::json;

// `no_rope_layers` has a 1 for each layer that does rotate; those attend to chunks unless
// `layer_types` says which do.
absl::Status ReadRotatedLayers(const ModelConfig& config, ModelSpec& spec) {
  LYNX_ASSIGN_OR_RETURN(const int32_t interval, config.SizeOr("no_rope_layer_interval", 4));
  constexpr char kChunk[] = "attention_chunk_size";
  const int32_t absent = config.object().contains(kChunk) ? 0 : 8192;
  LYNX_ASSIGN_OR_RETURN(const int32_t chunk, config.CountOr(kChunk, absent));
  constexpr char kKey[] = "no_rope_layers";
  const std::string wanted = absl::StrCat("a list of ", spec.layers, " zeros and ones");
  const json* listed = config.Find(kKey);
  if (listed != nullptr && listed->is_array() && listed->empty()) listed = nullptr;
  if (listed != nullptr && (!listed->is_array() || listed->size() != spec.attention.size())) {
    return config.Wrong(kKey, wanted);
  }
  for (int32_t i = 0; i < spec.layers; ++i) {
    LayerAttention& layer = spec.attention[static_cast<size_t>(i)];
    layer.rope = (i + 1) % interval != 0;
    if (listed != nullptr) {
      const json& rotates = (*listed)[static_cast<size_t>(i)];
      if (rotates != json(0) && rotates != json(1)) return config.Wrong(kKey, wanted);
      layer.rope = rotates == json(1);
    }
    if (layer.rope) layer.reach.chunk = chunk;
  }
  return ReadLayerTypes(config, "chunked_attention", {.chunk = chunk}, spec);
}

// `moe_layers`, or every `interleave_moe_layer_step`-th.
absl::Status ReadMoeLayers(const ModelConfig& config, ModelSpec& spec) {
  MakeAllLayers(FeedForwardKind::kDense, spec);
  if (config.Find("moe_layers") != nullptr) {
    return SetListedLayers(config, "moe_layers", FeedForwardKind::kMoe, spec);
  }
  LYNX_ASSIGN_OR_RETURN(const int32_t step, config.SizeOr("interleave_moe_layer_step", 1));
  for (int32_t i = step - 1; i < spec.layers; i += step) {
    spec.feed_forward[static_cast<size_t>(i)] = FeedForwardKind::kMoe;
  }
  return absl::OkStatus();
}

// `attn_temperature_tuning` is a switch or a number that is one.
absl::Status ReadQueryGrowth(const ModelConfig& config, ModelSpec& spec) {
  constexpr char kKey[] = "attn_temperature_tuning";
  const json* tuning = config.Find(kKey);
  if (tuning != nullptr && !tuning->is_boolean()) {
    LYNX_ASSIGN_OR_RETURN(const double number, config.NumberOr(kKey, 1));
    if (number == 0) return absl::OkStatus();
  } else if (tuning != nullptr && *tuning == json(false)) {
    return absl::OkStatus();
  }
  LYNX_ASSIGN_OR_RETURN(const double growth, config.Positive("attn_scale", 0.1));
  LYNX_ASSIGN_OR_RETURN(const double floor, config.Positive("floor_scale", 8192));
  spec.query_growth = static_cast<float>(growth);
  spec.query_growth_floor = static_cast<float>(floor);
  return absl::OkStatus();
}

absl::Status Read(const ModelConfig& config, ModelSpec& spec) {
  LYNX_RETURN_IF_ERROR(ReadExperts(config, "intermediate_size", spec));
  LYNX_RETURN_IF_ERROR(ReadMoeLayers(config, spec));
  LYNX_RETURN_IF_ERROR(ReadRotatedLayers(config, spec));
  LYNX_RETURN_IF_ERROR(ReadQueryGrowth(config, spec));
  if (spec.has_moe()) spec.shared_intermediate_size = spec.expert_intermediate_size;
  LYNX_ASSIGN_OR_RETURN(spec.dense_intermediate_size,
                        config.SizeOr("intermediate_size_mlp", 16384));
  LYNX_ASSIGN_OR_RETURN(const bool norm, config.Flag("use_qk_norm", true));
  if (norm) spec.query_key_norm = QueryKeyNorm::kRotated;
  LYNX_RETURN_IF_ERROR(ReadAttentionBias(config, false, spec));
  spec.neighbour_rope = true;
  spec.gate.score = moe::Gate::Score::kSigmoid;
  spec.gate.rule = moe::Gate::Rule::kKeepMass;
  spec.gate.scales_input = true;
  return ReadRope(config, 500000.0, spec);
}

void Bind(const ModelSpec& spec, WeightBinder& binder, ModelWeights& weights) {
  BindDecoder(
      spec, binder, weights,
      [&](FeedForwardKind kind, const std::string& prefix, LayerWeights& layer) {
        FeedForwardWeights& feed_forward = layer.feed_forward;
        const std::string mlp = prefix + "feed_forward.";
        BindAttention(spec, prefix, binder, layer);
        if (kind == FeedForwardKind::kDense) {
          feed_forward.experts.push_back(binder.TakeMlp(
              mlp, spec.hidden_size, spec.dense_intermediate_size, binder.shard().dense_columns));
          return;
        }
        feed_forward.router =
            binder.TakeMatrix(mlp + "router.weight", spec.experts, spec.hidden_size);
        feed_forward.experts = binder.TakeTransposedMlps(
            mlp + "experts.gate_up_proj", mlp + "experts.down_proj", spec.experts, spec.hidden_size,
            spec.expert_intermediate_size, /*interleaved=*/false);
        feed_forward.shared =
            binder.TakeMlp(mlp + "shared_expert.", spec.hidden_size, spec.shared_intermediate_size,
                           binder.shard().shared_columns);
      });
}

// In a checkpoint of the multimodal model.
void BindWrapped(const ModelSpec& spec, WeightBinder& binder, ModelWeights& weights) {
  binder.SetPrefix("language_model.");
  Bind(spec, binder, weights);
  binder.IgnorePrefix("vision_model.");
  binder.IgnorePrefix("multi_modal_projector.");
}

}  // namespace

const Family kLlama4 = {.model_type = "llama4",
                        .read = Read,
                        .bind = BindWrapped,
                        .rms_norm_epsilon = 1e-5,
                        .text_key = "text_config"};
const Family kLlama4Text = {
    .model_type = "llama4_text", .read = Read, .bind = Bind, .rms_norm_epsilon = 1e-5};

}  // namespace lynx::model
