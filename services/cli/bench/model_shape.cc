#include "services/cli/bench/model_shape.h"

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/base/status_macros.h"
#include "common/model/json_file.h"

namespace lynx::cli {
namespace {

using nlohmann::json;

constexpr int64_t kMaxConfigBytes = 4 << 20;

// As the models' own config.json say, without what no bench needs.
constexpr struct {
  std::string_view name;
  const char* config;
} kShapes[] = {
    {"olmoe-1b-7b", R"({
        "model_type": "olmoe", "vocab_size": 50304, "hidden_size": 2048, "num_hidden_layers": 16,
        "num_attention_heads": 16, "num_key_value_heads": 16, "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-5, "rope_theta": 10000, "num_experts": 64, "num_experts_per_tok": 8,
        "intermediate_size": 1024, "norm_topk_prob": false})"},
    {"qwen3-30b-a3b", R"({
        "model_type": "qwen3_moe", "vocab_size": 151936, "hidden_size": 2048,
        "num_hidden_layers": 48, "num_attention_heads": 32, "num_key_value_heads": 4,
        "head_dim": 128, "max_position_embeddings": 40960, "rms_norm_eps": 1e-6,
        "rope_theta": 1000000, "num_experts": 128, "num_experts_per_tok": 8,
        "moe_intermediate_size": 768, "intermediate_size": 6144, "norm_topk_prob": true})"},
    {"mixtral-8x7b", R"({
        "model_type": "mixtral", "vocab_size": 32000, "hidden_size": 4096, "num_hidden_layers": 32,
        "num_attention_heads": 32, "num_key_value_heads": 8, "max_position_embeddings": 32768,
        "rms_norm_eps": 1e-5, "rope_theta": 1000000, "num_local_experts": 8,
        "num_experts_per_tok": 2, "intermediate_size": 14336})"},
    {"qwen2-57b-a14b", R"({
        "model_type": "qwen2_moe", "vocab_size": 151936, "hidden_size": 3584,
        "num_hidden_layers": 28, "num_attention_heads": 28, "num_key_value_heads": 4,
        "max_position_embeddings": 32768, "rms_norm_eps": 1e-6, "rope_theta": 1000000,
        "num_experts": 64, "num_experts_per_tok": 8, "moe_intermediate_size": 2560,
        "shared_expert_intermediate_size": 20480, "norm_topk_prob": false})"},
    {"deepseek-v2-lite", R"({
        "model_type": "deepseek_v2", "vocab_size": 102400, "hidden_size": 2048,
        "num_hidden_layers": 27, "num_attention_heads": 16, "q_lora_rank": null,
        "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
        "max_position_embeddings": 163840, "rms_norm_eps": 1e-6, "rope_theta": 10000,
        "rope_scaling": {"type": "yarn", "factor": 40, "beta_fast": 32, "beta_slow": 1,
        "mscale": 0.707, "mscale_all_dim": 0.707, "original_max_position_embeddings": 4096},
        "n_routed_experts": 64, "n_shared_experts": 2, "num_experts_per_tok": 6,
        "moe_intermediate_size": 1408, "intermediate_size": 10944, "first_k_dense_replace": 1,
        "topk_method": "greedy", "n_group": 1, "topk_group": 1, "routed_scaling_factor": 1.0,
        "norm_topk_prob": false})"},
};

// Far more than there is memory for, and few enough to count their bytes in 64 bits.
constexpr double kMostParameters = 1e15;

double RoughParameters(const model::ModelSpec& spec) {
  const double hidden = spec.hidden_size;
  const double attention = 4.0 * spec.query_heads * spec.head_dim;
  const double feed_forward = 3.0 * (1.0 * spec.experts * spec.expert_intermediate_size +
                                     spec.shared_intermediate_size + spec.dense_intermediate_size);
  return hidden * (2.0 * spec.vocab_size + spec.layers * (attention + feed_forward));
}

}  // namespace

std::vector<std::string> ShapeNames() {
  std::vector<std::string> names;
  for (const auto& shape : kShapes) names.emplace_back(shape.name);
  return names;
}

absl::StatusOr<ModelShape> LoadModelShape(const std::string& shape) {
  for (const auto& known : kShapes) {
    if (known.name == shape) return ShapeOfConfig(json::parse(known.config), shape);
  }
  std::error_code error;
  if (!std::filesystem::is_regular_file(shape, error)) {
    return absl::NotFoundError(
        absl::StrCat("'", shape, "' is no file and none of ", absl::StrJoin(ShapeNames(), ", ")));
  }
  LYNX_ASSIGN_OR_RETURN(const json config, model::ReadJsonFile(shape, kMaxConfigBytes));
  return ShapeOfConfig(config, shape);
}

absl::StatusOr<ModelShape> ShapeOfFlag(const std::string& shape) {
  absl::StatusOr<ModelShape> loaded = LoadModelShape(shape);
  if (!absl::IsNotFound(loaded.status())) return loaded;
  return absl::InvalidArgumentError(
      absl::StrCat("--shape: ", std::string(loaded.status().message())));
}

absl::StatusOr<ModelShape> ShapeOfConfig(const json& config, const std::string& name) {
  if (!config.is_object()) {
    return absl::InvalidArgumentError(absl::StrCat(name, ": not a JSON object"));
  }
  ModelShape shape{.name = name};
  LYNX_ASSIGN_OR_RETURN(shape.spec, model::ParseModelSpec(config, name));
  shape.spec.mxfp4_experts = false;  // Weights are made up as they would be packed: in bf16.
  if (const double parameters = RoughParameters(shape.spec); parameters > kMostParameters) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s: a model of %.1e parameters", name, parameters));
  }
  return shape;
}

void KeepLayers(int32_t layers, model::ModelSpec& spec) {
  spec.layers = layers;
  spec.feed_forward.resize(static_cast<size_t>(layers));
  spec.attention.resize(static_cast<size_t>(layers));
}

int64_t AttentionParameters(const model::ModelSpec& spec) {
  const int64_t hidden = spec.hidden_size;
  if (!spec.has_latents()) return 2 * hidden * spec.head_dim * (spec.query_heads + spec.kv_heads);
  const int64_t heads = spec.query_heads;
  const int64_t latent = spec.kv_lora_rank;
  const int64_t q_lora = spec.q_lora_rank;
  const int64_t q = heads * spec.head_dim;
  return (q_lora > 0 ? q_lora * (hidden + q) : hidden * q) +
         hidden * (latent + spec.qk_rope_head_dim) +
         latent * heads * (spec.qk_nope_head_dim + spec.v_head_dim) +
         heads * spec.v_head_dim * hidden;
}

int64_t ExpertParameters(const model::ModelSpec& spec) {
  return int64_t{3} * spec.hidden_size * spec.expert_intermediate_size;
}

int64_t SharedParameters(const model::ModelSpec& spec) {
  return int64_t{3} * spec.hidden_size * spec.shared_intermediate_size +
         (spec.shared_gate ? spec.hidden_size : 0);
}

int64_t LayerParameters(const model::ModelSpec& spec, int32_t layer) {
  const int64_t feed_forward =
      spec.feed_forward[static_cast<size_t>(layer)] == model::FeedForwardKind::kMoe
          ? int64_t{spec.experts} * (ExpertParameters(spec) + spec.hidden_size) +
                SharedParameters(spec)
          : int64_t{3} * spec.hidden_size * spec.dense_intermediate_size;
  return AttentionParameters(spec) + feed_forward;
}

int64_t MatrixParameters(const model::ModelSpec& spec) {
  int64_t parameters = int64_t{spec.tied_embeddings ? 1 : 2} * spec.vocab_size * spec.hidden_size;
  for (int32_t layer = 0; layer < spec.layers; ++layer) parameters += LayerParameters(spec, layer);
  return parameters;
}

}  // namespace lynx::cli
