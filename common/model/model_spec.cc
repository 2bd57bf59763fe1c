#include "common/model/model_spec.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/model/json_file.h"

namespace lynx::model {
namespace {

using nlohmann::json;

constexpr int64_t kMaxConfigBytes = 4 << 20;
// Beyond any model there is, and small enough that products of two fit in 64 bits.
constexpr int64_t kMaxSize = 1 << 24;

// Reads typed keys of one JSON object; a null counts as absent.
class Config {
 public:
  Config(const json& object, std::string file) : object_(object), file_(std::move(file)) {}

  const json* Find(const char* key) const {
    const auto it = object_.find(key);
    return it == object_.end() || it->is_null() ? nullptr : &*it;
  }

  absl::Status Wrong(const char* key, std::string_view wanted) const {
    const json* value = Find(key);
    std::string found = "absent";
    if (value != nullptr) {
      found = value->is_structured() ? value->type_name() : value->dump();
      if (found.size() > 100) found = absl::StrCat(found.substr(0, 100), "...");
    }
    return absl::InvalidArgumentError(
        absl::StrCat(file_, ": key '", key, "' must be ", std::string(wanted), "; it is ", found));
  }

  absl::StatusOr<int32_t> Size(const char* key) const {
    const json* value = Find(key);
    if (value == nullptr || !value->is_number_integer() || *value < 1 || *value > kMaxSize) {
      return Wrong(key, absl::StrCat("an integer from 1 to ", kMaxSize));
    }
    return value->get<int32_t>();
  }
  absl::StatusOr<int32_t> SizeOr(const char* key, int32_t absent) const {
    if (Find(key) == nullptr) return absent;
    return Size(key);
  }
  absl::StatusOr<double> Positive(const char* key, std::optional<double> absent) const {
    const json* value = Find(key);
    if (value == nullptr && absent.has_value()) return *absent;
    if (value == nullptr || !value->is_number()) return Wrong(key, "a positive number");
    const double number = value->get<double>();
    if (!(number > 0) || !std::isfinite(number)) return Wrong(key, "a positive number");
    return number;
  }
  absl::StatusOr<bool> Flag(const char* key, bool absent) const {
    const json* value = Find(key);
    if (value == nullptr) return absent;
    if (!value->is_boolean()) return Wrong(key, "true or false");
    return value->get<bool>();
  }
  absl::StatusOr<std::string> Text(const char* key, std::optional<std::string> absent) const {
    const json* value = Find(key);
    if (value == nullptr && absent.has_value()) return *absent;
    if (value == nullptr || !value->is_string()) return Wrong(key, "a string");
    return value->get<std::string>();
  }
  // An integer, a list of integers, or absent.
  absl::Status AddIds(const char* key, std::set<int32_t>& ids) const {
    const json* value = Find(key);
    if (value == nullptr) return absl::OkStatus();
    for (const json& id : value->is_array() ? *value : json::array({*value})) {
      if (!id.is_number_integer() || id < 0 || id > kMaxSize) {
        return Wrong(key, "a token id or a list of token ids");
      }
      ids.insert(id.get<int32_t>());
    }
    return absl::OkStatus();
  }

  absl::Status Unserved(const char* key, std::string_view why) const {
    const json* value = Find(key);
    std::string found = value == nullptr ? "absent" : value->dump();
    if (found.size() > 100) found = absl::StrCat(found.substr(0, 100), "...");
    return absl::UnimplementedError(
        absl::StrCat(file_, ": '", key, "' is ", found, ": ", std::string(why)));
  }
  const json& object() const { return object_; }
  const std::string& file() const { return file_; }

 private:
  const json& object_;
  const std::string file_;
};

// Either spelling of plain RoPE: `rope_theta` beside an absent or default `rope_scaling`, or both
// inside `rope_parameters`.
absl::Status ReadRope(const Config& config, double default_theta, ModelSpec& spec) {
  const char* scaling_key =
      config.Find("rope_parameters") != nullptr ? "rope_parameters" : "rope_scaling";
  if (const json* scaling = config.Find(scaling_key); scaling != nullptr) {
    if (!scaling->is_object()) return config.Wrong(scaling_key, "an object");
    const Config inner(*scaling, absl::StrCat(config.file(), ": ", scaling_key));
    LYNX_ASSIGN_OR_RETURN(const std::string older, inner.Text("type", "default"));
    LYNX_ASSIGN_OR_RETURN(const std::string type, inner.Text("rope_type", older));
    if (type != "default") return config.Unserved(scaling_key, "only plain RoPE is served");
    LYNX_ASSIGN_OR_RETURN(const double theta, config.Positive("rope_theta", default_theta));
    LYNX_ASSIGN_OR_RETURN(spec.rope_theta, inner.Positive("rope_theta", theta));
    return absl::OkStatus();
  }
  LYNX_ASSIGN_OR_RETURN(spec.rope_theta, config.Positive("rope_theta", default_theta));
  return absl::OkStatus();
}

// Which layers are MoE, by the rule that the Qwen families share.
absl::Status ReadSparseLayers(const Config& config, ModelSpec& spec) {
  LYNX_ASSIGN_OR_RETURN(const int32_t step, config.SizeOr("decoder_sparse_step", 1));
  spec.feed_forward.assign(static_cast<size_t>(spec.layers), FeedForwardKind::kDense);
  for (int32_t i = 0; i < spec.layers; ++i) {
    if (spec.experts > 0 && (i + 1) % step == 0) {
      spec.feed_forward[static_cast<size_t>(i)] = FeedForwardKind::kMoe;
    }
  }
  if (const json* dense = config.Find("mlp_only_layers"); dense != nullptr) {
    if (!dense->is_array()) return config.Wrong("mlp_only_layers", "a list of layers");
    for (const json& layer : *dense) {
      if (!layer.is_number_integer() || layer < 0 || layer >= spec.layers) {
        return config.Wrong("mlp_only_layers",
                            absl::StrCat("a list of layers below ", spec.layers));
      }
      spec.feed_forward[layer.get<size_t>()] = FeedForwardKind::kDense;
    }
  }
  return absl::OkStatus();
}

absl::Status ReadQwen3Moe(const Config& config, ModelSpec& spec) {
  LYNX_ASSIGN_OR_RETURN(const bool bias, config.Flag("attention_bias", false));
  if (bias) return config.Unserved("attention_bias", "attention with biases is not served");
  LYNX_ASSIGN_OR_RETURN(const bool window, config.Flag("use_sliding_window", false));
  if (window) return config.Unserved("use_sliding_window", "sliding windows are not served");
  spec.head_norm = true;

  for (const char* alias : {"num_experts", "num_local_experts", "n_routed_experts"}) {
    const json* value = config.Find(alias);
    if (value == nullptr) continue;
    if (*value != 0) {
      LYNX_ASSIGN_OR_RETURN(spec.experts, config.Size(alias));
    }
    break;
  }
  LYNX_RETURN_IF_ERROR(ReadRope(config, 10000.0, spec));
  LYNX_RETURN_IF_ERROR(ReadSparseLayers(config, spec));
  if (spec.has_moe()) {
    LYNX_ASSIGN_OR_RETURN(spec.experts_per_token, config.Size("num_experts_per_tok"));
    if (spec.experts_per_token > spec.experts) {
      return config.Wrong("num_experts_per_tok",
                          absl::StrCat("at most num_experts, ", spec.experts));
    }
    LYNX_ASSIGN_OR_RETURN(spec.expert_intermediate_size, config.Size("moe_intermediate_size"));
    LYNX_ASSIGN_OR_RETURN(const bool renormalise, config.Flag("norm_topk_prob", false));
    spec.gate.rule = renormalise ? moe::Gate::Rule::kRenormalise : moe::Gate::Rule::kKeepMass;
  } else {
    spec.experts = 0;
  }
  if (std::count(spec.feed_forward.begin(), spec.feed_forward.end(), FeedForwardKind::kDense) > 0) {
    LYNX_ASSIGN_OR_RETURN(spec.dense_intermediate_size, config.Size("intermediate_size"));
  }
  return absl::OkStatus();
}

absl::StatusOr<ModelSpec> ReadConfig(const Config& config) {
  ModelSpec spec;
  LYNX_ASSIGN_OR_RETURN(spec.model_type, config.Text("model_type", std::nullopt));
  if (spec.model_type != "qwen3_moe") {
    return config.Unserved("model_type", "this family is not served; qwen3_moe is");
  }
  if (config.Find("quantization_config") != nullptr) {
    return config.Unserved("quantization_config", "quantised weights are not served");
  }
  LYNX_ASSIGN_OR_RETURN(const std::string activation, config.Text("hidden_act", "silu"));
  if (activation != "silu") return config.Unserved("hidden_act", "only silu is served");

  LYNX_ASSIGN_OR_RETURN(spec.vocab_size, config.Size("vocab_size"));
  LYNX_ASSIGN_OR_RETURN(spec.hidden_size, config.Size("hidden_size"));
  LYNX_ASSIGN_OR_RETURN(spec.layers, config.Size("num_hidden_layers"));
  if (spec.layers > 10000) return config.Wrong("num_hidden_layers", "at most 10000");
  LYNX_ASSIGN_OR_RETURN(spec.query_heads, config.Size("num_attention_heads"));
  LYNX_ASSIGN_OR_RETURN(spec.kv_heads, config.SizeOr("num_key_value_heads", spec.query_heads));
  if (spec.query_heads % spec.kv_heads != 0) {
    return config.Wrong("num_key_value_heads",
                        absl::StrCat("a divisor of num_attention_heads, ", spec.query_heads));
  }
  if (config.Find("head_dim") == nullptr && spec.hidden_size % spec.query_heads != 0) {
    return config.Wrong("head_dim", "given where num_attention_heads does not divide hidden_size");
  }
  LYNX_ASSIGN_OR_RETURN(spec.head_dim,
                        config.SizeOr("head_dim", spec.hidden_size / spec.query_heads));
  if (spec.head_dim % 2 != 0 || spec.head_dim > 256) {
    return config.Wrong("head_dim", "even and at most 256");
  }
  LYNX_ASSIGN_OR_RETURN(spec.max_positions, config.Size("max_position_embeddings"));
  LYNX_ASSIGN_OR_RETURN(const double epsilon, config.Positive("rms_norm_eps", 1e-6));
  spec.rms_norm_epsilon = static_cast<float>(epsilon);
  LYNX_ASSIGN_OR_RETURN(spec.tied_embeddings, config.Flag("tie_word_embeddings", false));
  LYNX_RETURN_IF_ERROR(ReadQwen3Moe(config, spec));
  return spec;
}

}  // namespace

bool ModelSpec::has_moe() const {
  return std::count(feed_forward.begin(), feed_forward.end(), FeedForwardKind::kMoe) > 0;
}

moe::ModelFacts FactsOf(const ModelSpec& spec, std::string_view name) {
  return {.model_type = spec.model_type,
          .name = name,
          .experts = spec.has_moe() ? spec.experts : 0,
          .top_k = spec.experts_per_token,
          .hidden_size = spec.hidden_size,
          .scales_input = spec.gate.scales_input};
}

namespace {

// With the ids that end a sequence of `generation`, which may be null, added to the config's.
absl::StatusOr<ModelSpec> ReadSpec(const Config& config, const Config* generation) {
  if (!config.object().is_object()) {
    return absl::InvalidArgumentError(absl::StrCat(config.file(), ": not a JSON object"));
  }
  LYNX_ASSIGN_OR_RETURN(ModelSpec spec, ReadConfig(config));
  std::set<int32_t> eos;
  LYNX_RETURN_IF_ERROR(config.AddIds("eos_token_id", eos));
  if (generation != nullptr) {
    if (!generation->object().is_object()) {
      return absl::InvalidArgumentError(absl::StrCat(generation->file(), ": not a JSON object"));
    }
    LYNX_RETURN_IF_ERROR(generation->AddIds("eos_token_id", eos));
  }
  for (int32_t id : eos) {
    if (id >= spec.vocab_size) return config.Wrong("eos_token_id", "below vocab_size");
  }
  spec.eos_token_ids.assign(eos.begin(), eos.end());
  return spec;
}

}  // namespace

absl::StatusOr<ModelSpec> LoadModelSpec(const std::filesystem::path& model_dir) {
  const std::filesystem::path path = model_dir / "config.json";
  LYNX_ASSIGN_OR_RETURN(const json document, ReadJsonFile(path, kMaxConfigBytes));
  const Config config(document, path.string());
  const std::filesystem::path generation_path = model_dir / "generation_config.json";
  const absl::StatusOr<json> generation = ReadJsonFile(generation_path, kMaxConfigBytes);
  if (absl::IsNotFound(generation.status())) return ReadSpec(config, nullptr);
  LYNX_RETURN_IF_ERROR(generation.status());
  const Config generation_config(*generation, generation_path.string());
  return ReadSpec(config, &generation_config);
}

absl::StatusOr<ModelSpec> ParseModelSpec(const json& config, const std::string& name) {
  return ReadSpec(Config(config, name), nullptr);
}

}  // namespace lynx::model
