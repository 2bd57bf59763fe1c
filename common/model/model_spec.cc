#include "common/model/model_spec.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <set>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/model/families/family.h"
#include "common/model/json_file.h"
#include "common/model/model_config.h"
#include "common/model/quantization_config.h"
#include "kernels/attention/latent_attention_args.h"
#include "kernels/gemm/gemm.h"

namespace lynx::model {
namespace {

using nlohmann::json;

constexpr int64_t kMaxConfigBytes = 4 << 20;

// Far above any model there is (18432, 126 and 128), and such that whatever a config says, all of
// its weights have a size in bytes that fits in 64 bits.
constexpr int32_t kMaxHidden = 1 << 18;
constexpr int32_t kMaxLayers = 10'000;
constexpr int32_t kMaxHeads = 1 << 14;

absl::Status ReadDenseSize(const ModelConfig& config, ModelSpec& spec) {
  const auto dense =
      std::count(spec.feed_forward.begin(), spec.feed_forward.end(), FeedForwardKind::kDense);
  if (dense == 0) return absl::OkStatus();
  if (spec.dense_intermediate_size > 0) return absl::OkStatus();
  LYNX_ASSIGN_OR_RETURN(spec.dense_intermediate_size, config.Size("intermediate_size"));
  return absl::OkStatus();
}

absl::Status ReadGroupedHeads(const ModelConfig& config, ModelSpec& spec) {
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
  spec.rotary_dim = spec.head_dim;
  return absl::OkStatus();
}

absl::Status ReadLatentHeads(const ModelConfig& config, ModelSpec& spec) {
  const auto wrong_above = [&](const char* key, int64_t value, int64_t most) {
    return value <= most ? absl::OkStatus() : config.Wrong(key, absl::StrCat("at most ", most));
  };
  // What the kernels take. Models have up to 1536, 512, 128, 64, 128 and 128 heads.
  constexpr int64_t kMaxWidth = 1 << 16;
  LYNX_RETURN_IF_ERROR(wrong_above("num_attention_heads", spec.query_heads, kernels::kMaxGemms));
  LYNX_ASSIGN_OR_RETURN(spec.q_lora_rank, config.CountOr("q_lora_rank", 0));
  LYNX_ASSIGN_OR_RETURN(spec.kv_lora_rank, config.Size("kv_lora_rank"));
  LYNX_ASSIGN_OR_RETURN(spec.qk_nope_head_dim, config.Size("qk_nope_head_dim"));
  LYNX_ASSIGN_OR_RETURN(spec.qk_rope_head_dim, config.Size("qk_rope_head_dim"));
  LYNX_ASSIGN_OR_RETURN(spec.v_head_dim, config.Size("v_head_dim"));
  LYNX_RETURN_IF_ERROR(wrong_above("kv_lora_rank", spec.kv_lora_rank, kernels::kMaxLatentDim));
  LYNX_RETURN_IF_ERROR(wrong_above("qk_nope_head_dim", spec.qk_nope_head_dim, kMaxWidth));
  LYNX_RETURN_IF_ERROR(wrong_above("v_head_dim", spec.v_head_dim, kMaxWidth));
  if (spec.qk_rope_head_dim % 2 != 0 || spec.qk_rope_head_dim > kernels::kMaxLatentRopeDim) {
    return config.Wrong("qk_rope_head_dim",
                        absl::StrCat("even and at most ", kernels::kMaxLatentRopeDim));
  }
  spec.kv_heads = 1;
  spec.head_dim = spec.qk_nope_head_dim + spec.qk_rope_head_dim;
  spec.rotary_dim = spec.qk_rope_head_dim;
  return absl::OkStatus();
}

absl::StatusOr<ModelSpec> ReadFamily(const Family& family, const ModelConfig& config) {
  ModelSpec spec;
  spec.model_type = family.model_type;
  LYNX_ASSIGN_OR_RETURN(const std::string activation, config.Text("hidden_act", "silu"));
  if (activation != "silu") return config.Unserved("hidden_act", "only silu is served");

  LYNX_ASSIGN_OR_RETURN(spec.vocab_size, config.Size("vocab_size"));
  LYNX_ASSIGN_OR_RETURN(spec.hidden_size, config.Size("hidden_size", kMaxHidden));
  LYNX_ASSIGN_OR_RETURN(spec.layers, config.Size("num_hidden_layers", kMaxLayers));
  LYNX_ASSIGN_OR_RETURN(spec.query_heads, config.Size("num_attention_heads", kMaxHeads));
  LYNX_RETURN_IF_ERROR(family.has_latents ? ReadLatentHeads(config, spec)
                                          : ReadGroupedHeads(config, spec));
  LYNX_ASSIGN_OR_RETURN(spec.max_positions, config.Size("max_position_embeddings"));
  LYNX_ASSIGN_OR_RETURN(const double epsilon,
                        config.Positive("rms_norm_eps", family.rms_norm_epsilon));
  spec.rms_norm_epsilon = static_cast<float>(epsilon);
  LYNX_ASSIGN_OR_RETURN(spec.tied_embeddings, config.Flag("tie_word_embeddings", false));
  spec.attention.resize(static_cast<size_t>(spec.layers));
  spec.attention_scale = static_cast<float>(1 / std::sqrt(static_cast<double>(spec.head_dim)));
  LYNX_RETURN_IF_ERROR(family.read(config, spec));
  if (!spec.has_moe()) {
    spec.experts = 0;
  } else if (spec.experts == 0) {
    for (const char* key : {"num_experts", "num_local_experts", "n_routed_experts"}) {
      if (config.Find(key) != nullptr) {
        return config.Wrong(key, "above 0, as this family has experts");
      }
    }
    return absl::InvalidArgumentError(
        absl::StrCat(config.file(), ": this family has experts: one of the keys 'num_experts', ",
                     "'num_local_experts' and 'n_routed_experts' must be above 0"));
  }
  LYNX_RETURN_IF_ERROR(ReadDenseSize(config, spec));
  return spec;
}

// A flag beside the text part counts only where the part has none.
absl::Status ReadOuterTie(const ModelConfig& config, const ModelConfig& text, ModelSpec& spec) {
  constexpr char kKey[] = "tie_word_embeddings";
  LYNX_ASSIGN_OR_RETURN(const bool outer, config.Flag(kKey, spec.tied_embeddings));
  if (outer == spec.tied_embeddings) return absl::OkStatus();
  if (text.Find(kKey) == nullptr) {
    spec.tied_embeddings = outer;
  } else {
    spec.notes.push_back(absl::StrCat(text.file(), ": ", kKey, " is ",
                                      spec.tied_embeddings ? "true" : "false",
                                      "; the other value beside this part is not used"));
  }
  return absl::OkStatus();
}

// `config` of a model that may have other parts, too.
absl::StatusOr<ModelSpec> ReadText(const Family& family, const ModelConfig& config,
                                   std::set<int32_t>& eos) {
  if (family.text_key == nullptr) return ReadFamily(family, config);
  const json* object = config.Find(family.text_key);
  if (object == nullptr || !object->is_object()) return config.Wrong(family.text_key, "an object");
  const ModelConfig text(*object, absl::StrCat(config.file(), ": ", family.text_key));
  LYNX_ASSIGN_OR_RETURN(ModelSpec spec, ReadFamily(family, text));
  LYNX_RETURN_IF_ERROR(ReadOuterTie(config, text, spec));
  LYNX_RETURN_IF_ERROR(text.AddIds("eos_token_id", spec.vocab_size, eos));
  return spec;
}

// Adds the ids that end a sequence to `eos`.
absl::StatusOr<ModelSpec> ReadConfig(const ModelConfig& config, std::set<int32_t>& eos) {
  LYNX_ASSIGN_OR_RETURN(const std::string type, config.Text("model_type", std::nullopt));
  const Family* family = FindFamily(type);
  if (family == nullptr) {
    return config.Unserved("model_type",
                           absl::StrCat("this family is not served; served are ", FamilyNames()));
  }
  LYNX_ASSIGN_OR_RETURN(ModelSpec spec, ReadText(*family, config, eos));
  LYNX_RETURN_IF_ERROR(ReadQuantization(*family, config, spec));
  LYNX_RETURN_IF_ERROR(config.AddIds("eos_token_id", spec.vocab_size, eos));
  return spec;
}

}  // namespace

bool ModelSpec::has_moe() const {
  return std::count(feed_forward.begin(), feed_forward.end(), FeedForwardKind::kMoe) > 0;
}

kv::KvLayout KvLayoutOf(const ModelSpec& spec, DType kv_dtype) {
  std::vector<kv::Reach> reaches;
  for (const LayerAttention& layer : spec.attention) reaches.push_back(layer.reach);
  kv::KvLayout layout{.layers = spec.layers,
                      .kv_heads = spec.kv_heads,
                      .head_dim = spec.head_dim,
                      .dtype = kv_dtype};
  if (!reaches.empty()) layout.groups = kv::KvGroups(reaches);
  if (spec.has_latents()) {
    layout.kind = kv::KvKind::kLatent;
    layout.kv_heads = 1;
    layout.head_dim = spec.kv_lora_rank + spec.qk_rope_head_dim;
  }
  return layout;
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
absl::StatusOr<ModelSpec> ReadSpec(const ModelConfig& config, const ModelConfig* generation) {
  if (!config.object().is_object()) {
    return absl::InvalidArgumentError(absl::StrCat(config.file(), ": not a JSON object"));
  }
  std::set<int32_t> eos;
  LYNX_ASSIGN_OR_RETURN(ModelSpec spec, ReadConfig(config, eos));
  if (generation != nullptr) {
    if (!generation->object().is_object()) {
      return absl::InvalidArgumentError(absl::StrCat(generation->file(), ": not a JSON object"));
    }
    LYNX_RETURN_IF_ERROR(generation->AddIds("eos_token_id", spec.vocab_size, eos));
  }
  spec.eos_token_ids.assign(eos.begin(), eos.end());
  return spec;
}

}  // namespace

absl::StatusOr<ModelSpec> LoadModelSpec(const std::filesystem::path& model_dir) {
  const std::filesystem::path path = model_dir / "config.json";
  LYNX_ASSIGN_OR_RETURN(const json document, ReadJsonFile(path, kMaxConfigBytes));
  const ModelConfig config(document, path.string());
  const std::filesystem::path generation_path = model_dir / "generation_config.json";
  const absl::StatusOr<json> generation = ReadJsonFile(generation_path, kMaxConfigBytes);
  if (absl::IsNotFound(generation.status())) return ReadSpec(config, nullptr);
  LYNX_RETURN_IF_ERROR(generation.status());
  const ModelConfig generation_config(*generation, generation_path.string());
  return ReadSpec(config, &generation_config);
}

absl::StatusOr<ModelSpec> ParseModelSpec(const json& config, const std::string& name) {
  return ReadSpec(ModelConfig(config, name), nullptr);
}

}  // namespace lynx::model
