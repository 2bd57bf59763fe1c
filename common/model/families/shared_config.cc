#include "common/model/families/shared_config.h"

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace lynx::model {

using nlohmann::json;

namespace {

struct Rope {
  double theta = 0;
  kernels::RopeScaling scaling;

  friend bool operator==(const Rope&, const Rope&) = default;
};

// `config` holds the scaling's own keys; `original_positions` is for where it has none.
absl::Status ReadRopeScaling(const ModelConfig& config, int32_t original_positions,
                             kernels::RopeScaling& scaling) {
  LYNX_ASSIGN_OR_RETURN(const std::string older, config.Text("type", "default"));
  LYNX_ASSIGN_OR_RETURN(const std::string type, config.Text("rope_type", older));
  if (type == "default") return absl::OkStatus();
  using Kind = kernels::RopeScalingKind;
  if (type == "linear") {
    scaling.kind = Kind::kLinear;
  } else if (type == "llama3") {
    scaling.kind = Kind::kLlama3;
  } else if (type == "yarn") {
    scaling.kind = Kind::kYarn;
  } else {
    return config.Unserved(config.FirstOf({"rope_type", "type"}),
                           "served are default, linear, llama3 and yarn");
  }
  LYNX_ASSIGN_OR_RETURN(scaling.factor, config.Positive("factor", std::nullopt));
  if (scaling.kind == Kind::kLinear) return absl::OkStatus();
  LYNX_ASSIGN_OR_RETURN(scaling.original_positions,
                        config.SizeOr("original_max_position_embeddings", original_positions));
  if (scaling.kind == Kind::kLlama3) {
    LYNX_ASSIGN_OR_RETURN(scaling.low_freq_factor,
                          config.Positive("low_freq_factor", std::nullopt));
    LYNX_ASSIGN_OR_RETURN(scaling.high_freq_factor,
                          config.Positive("high_freq_factor", std::nullopt));
    return absl::OkStatus();
  }
  LYNX_ASSIGN_OR_RETURN(scaling.beta_fast, config.Positive("beta_fast", scaling.beta_fast));
  LYNX_ASSIGN_OR_RETURN(scaling.beta_slow, config.Positive("beta_slow", scaling.beta_slow));
  LYNX_ASSIGN_OR_RETURN(scaling.mscale, config.NumberOr("mscale", 0));
  LYNX_ASSIGN_OR_RETURN(scaling.mscale_all_dim, config.NumberOr("mscale_all_dim", 0));
  if (config.Find("attention_factor") != nullptr) {
    LYNX_ASSIGN_OR_RETURN(scaling.attention_factor,
                          config.Positive("attention_factor", std::nullopt));
  }
  LYNX_ASSIGN_OR_RETURN(scaling.truncate, config.Flag("truncate", true));
  return absl::OkStatus();
}

// What the object `key` says; nothing where there is none.
absl::StatusOr<std::optional<Rope>> ReadRopeObject(const ModelConfig& config, const char* key,
                                                   double theta, int32_t max_positions) {
  const json* object = config.Find(key);
  if (object == nullptr) return std::nullopt;
  if (!object->is_object()) return config.Wrong(key, "an object");
  if (object->empty() && std::string_view(key) == "rope_scaling") return std::nullopt;
  const ModelConfig inner(*object, absl::StrCat(config.file(), ": ", key));
  Rope rope;
  LYNX_ASSIGN_OR_RETURN(rope.theta, inner.Positive("rope_theta", theta));
  constexpr char kOriginal[] = "original_max_position_embeddings";
  LYNX_ASSIGN_OR_RETURN(const int32_t original, config.SizeOr(kOriginal, max_positions));
  LYNX_RETURN_IF_ERROR(ReadRopeScaling(inner, original, rope.scaling));
  const int64_t used = rope.scaling.original_positions;
  if (config.Find(kOriginal) != nullptr && used > 0 && used != original) {
    return config.Wrong(kOriginal, absl::StrCat("as in ", key, ", ", used));
  }
  return rope;
}

}  // namespace

absl::Status ReadRope(const ModelConfig& config, double default_theta, ModelSpec& spec) {
  LYNX_ASSIGN_OR_RETURN(const double theta, config.Positive("rope_theta", default_theta));
  LYNX_ASSIGN_OR_RETURN(const std::optional<Rope> older,
                        ReadRopeObject(config, "rope_scaling", theta, spec.max_positions));
  LYNX_ASSIGN_OR_RETURN(const std::optional<Rope> newer,
                        ReadRopeObject(config, "rope_parameters", theta, spec.max_positions));
  if (older.has_value() && newer.has_value() && *older != *newer) {
    return config.Wrong("rope_scaling", "absent, or say the same as rope_parameters");
  }
  const char* key = newer.has_value() ? "rope_parameters" : "rope_scaling";
  const Rope rope = newer.has_value()   ? *newer
                    : older.has_value() ? *older
                                        : Rope{.theta = theta, .scaling = spec.rope_scaling};
  spec.rope_theta = rope.theta;
  spec.rope_scaling = rope.scaling;
  const absl::Status fits =
      kernels::CheckRopeScaling(spec.rotary_dim, spec.rope_theta, spec.rope_scaling);
  if (fits.ok()) return fits;
  return absl::InvalidArgumentError(
      absl::StrCat(config.file(), ": ", key, ": ", std::string(fits.message())));
}

absl::Status ReadAttentionBias(const ModelConfig& config, bool absent, ModelSpec& spec) {
  LYNX_ASSIGN_OR_RETURN(const bool bias, config.Flag("attention_bias", absent));
  spec.qkv_bias = bias;
  spec.output_bias = bias;
  return absl::OkStatus();
}

absl::StatusOr<int32_t> ReadWindow(const ModelConfig& config, int32_t absent) {
  constexpr char kKey[] = "sliding_window";
  if (config.Find(kKey) != nullptr) return config.Size(kKey);
  return config.object().contains(kKey) ? 0 : absent;
}

absl::StatusOr<int32_t> ReadSwitchedWindow(const ModelConfig& config) {
  LYNX_ASSIGN_OR_RETURN(const bool used, config.Flag("use_sliding_window", false));
  return used ? ReadWindow(config, 4096) : absl::StatusOr<int32_t>(0);
}

void SetWindow(int32_t window, ModelSpec& spec) {
  for (LayerAttention& layer : spec.attention) layer.reach.window = window;
}

absl::Status ReadLayerTypes(const ModelConfig& config, const std::string& local,
                            const kv::Reach& reach, ModelSpec& spec) {
  const json* types = config.Find("layer_types");
  if (types == nullptr) return absl::OkStatus();
  if (!types->is_array() || types->size() != spec.attention.size()) {
    return config.Wrong("layer_types", absl::StrCat("a list of ", spec.layers, " types"));
  }
  for (size_t i = 0; i < spec.attention.size(); ++i) {
    const json& type = (*types)[i];
    const bool is_local = type == local;
    if (!is_local && type != "full_attention") {
      return config.Unserved("layer_types", absl::StrCat("served are full_attention and ", local));
    }
    if (is_local && reach == kv::Reach{}) {
      return config.Wrong("layer_types", absl::StrCat("without ", local, ": no size is given"));
    }
    spec.attention[i].reach = is_local ? reach : kv::Reach{};
  }
  return absl::OkStatus();
}

absl::Status ReadLateWindows(const ModelConfig& config, ModelSpec& spec) {
  LYNX_ASSIGN_OR_RETURN(const int32_t window, ReadSwitchedWindow(config));
  LYNX_ASSIGN_OR_RETURN(const int32_t first, config.CountOr("max_window_layers", 28));
  for (int32_t i = first; i < spec.layers; ++i) {
    spec.attention[static_cast<size_t>(i)].reach.window = window;
  }
  return ReadLayerTypes(config, "sliding_attention", {.window = window}, spec);
}

absl::Status RefuseWindow(const ModelConfig& config) {
  if (config.Find("sliding_window") == nullptr) return absl::OkStatus();
  return config.Unserved("sliding_window", "this family has none");
}

absl::Status ReadExperts(const ModelConfig& config, const char* size_key, ModelSpec& spec) {
  const char* count = nullptr;
  for (const char* spelling : {"num_experts", "num_local_experts", "n_routed_experts"}) {
    if (config.Find(spelling) == nullptr) continue;
    LYNX_ASSIGN_OR_RETURN(const int32_t experts, config.CountOr(spelling, 0));
    if (count != nullptr && experts != spec.experts) {
      return config.Wrong(spelling, absl::StrCat("as ", count, ", ", spec.experts));
    }
    count = spelling;
    spec.experts = experts;
  }
  if (spec.experts == 0) return absl::OkStatus();
  // The largest models have some 25 000, and each has tensors to be named.
  constexpr int64_t kMaxExperts = 1 << 17;
  if (int64_t{spec.experts} * spec.layers > kMaxExperts) {
    return config.Wrong(
        count, absl::StrCat("at most ", kMaxExperts, " in all ", spec.layers, " layers together"));
  }
  LYNX_ASSIGN_OR_RETURN(spec.experts_per_token, config.Size("num_experts_per_tok"));
  if (spec.experts_per_token > spec.experts) {
    return config.Wrong("num_experts_per_tok", absl::StrCat("at most ", count, ", ", spec.experts));
  }
  LYNX_ASSIGN_OR_RETURN(spec.expert_intermediate_size, config.Size(size_key));
  return absl::OkStatus();
}

absl::Status ReadSoftmaxGate(const ModelConfig& config, ModelSpec& spec) {
  LYNX_ASSIGN_OR_RETURN(const bool renormalise, config.Flag("norm_topk_prob", false));
  spec.gate.rule = renormalise ? moe::Gate::Rule::kRenormalise : moe::Gate::Rule::kKeepMass;
  return absl::OkStatus();
}

absl::Status ReadSparseLayers(const ModelConfig& config, ModelSpec& spec) {
  LYNX_ASSIGN_OR_RETURN(const int32_t step, config.SizeOr("decoder_sparse_step", 1));
  MakeAllLayers(FeedForwardKind::kDense, spec);
  for (int32_t i = 0; i < spec.layers; ++i) {
    if (spec.experts > 0 && (i + 1) % step == 0) {
      spec.feed_forward[static_cast<size_t>(i)] = FeedForwardKind::kMoe;
    }
  }
  if (config.Find("mlp_only_layers") == nullptr) return absl::OkStatus();
  return SetListedLayers(config, "mlp_only_layers", FeedForwardKind::kDense, spec);
}

absl::Status ReadFirstLayersDense(const ModelConfig& config, int32_t absent, ModelSpec& spec) {
  LYNX_ASSIGN_OR_RETURN(const int32_t dense, config.CountOr("first_k_dense_replace", absent));
  LYNX_ASSIGN_OR_RETURN(const int32_t step, config.SizeOr("moe_layer_freq", 1));
  MakeAllLayers(FeedForwardKind::kDense, spec);
  if (spec.experts == 0) return absl::OkStatus();
  for (int32_t i = dense; i < spec.layers; ++i) {
    if (i % step == 0) spec.feed_forward[static_cast<size_t>(i)] = FeedForwardKind::kMoe;
  }
  return absl::OkStatus();
}

absl::Status ReadExpertGroups(const ModelConfig& config, int32_t groups, int32_t groups_kept,
                              ModelSpec& spec) {
  LYNX_ASSIGN_OR_RETURN(spec.gate.groups, config.SizeOr("n_group", groups));
  LYNX_ASSIGN_OR_RETURN(spec.gate.groups_kept, config.SizeOr("topk_group", groups_kept));
  if (spec.experts % spec.gate.groups != 0) {
    return config.Wrong("n_group", absl::StrCat("a divisor of the ", spec.experts, " experts"));
  }
  if (spec.gate.groups_kept > spec.gate.groups) {
    return config.Wrong("topk_group", absl::StrCat("at most n_group, ", spec.gate.groups));
  }
  if (spec.experts_per_token > spec.experts / spec.gate.groups * spec.gate.groups_kept) {
    return config.Wrong("topk_group",
                        absl::StrCat("enough groups for ", spec.experts_per_token, " experts"));
  }
  return absl::OkStatus();
}

absl::Status ReadSigmoidGate(const ModelConfig& config, const SigmoidGateDefaults& absent,
                             ModelSpec& spec) {
  LYNX_RETURN_IF_ERROR(ReadExpertGroups(config, absent.groups, absent.groups_kept, spec));
  LYNX_ASSIGN_OR_RETURN(const bool renormalise, config.Flag("norm_topk_prob", true));
  LYNX_ASSIGN_OR_RETURN(const double scale, config.Positive("routed_scaling_factor", absent.scale));
  spec.gate.score = moe::Gate::Score::kSigmoid;
  spec.gate.rule = renormalise ? moe::Gate::Rule::kRenormalise : moe::Gate::Rule::kKeepMass;
  spec.gate.group_score = moe::Gate::GroupScore::kTopTwoSum;
  spec.gate.scale = static_cast<float>(scale);
  spec.ranking_bias = true;
  return absl::OkStatus();
}

absl::Status ReadSharedExperts(const ModelConfig& config, int32_t absent, ModelSpec& spec) {
  LYNX_ASSIGN_OR_RETURN(const int32_t shared, config.CountOr("n_shared_experts", absent));
  const int64_t width = int64_t{shared} * spec.expert_intermediate_size;
  if (width > (1 << 24)) return config.Wrong("n_shared_experts", "a number of experts");
  spec.shared_intermediate_size = static_cast<int32_t>(width);
  return absl::OkStatus();
}

absl::Status ReadRotaryFactor(const ModelConfig& config, double absent, ModelSpec& spec) {
  LYNX_ASSIGN_OR_RETURN(double factor, config.Positive("partial_rotary_factor", absent));
  if (const json* rope = config.Find("rope_parameters"); rope != nullptr && rope->is_object()) {
    const ModelConfig inner(*rope, absl::StrCat(config.file(), ": rope_parameters"));
    LYNX_ASSIGN_OR_RETURN(factor, inner.Positive("partial_rotary_factor", factor));
  }
  spec.rotary_dim = static_cast<int32_t>(spec.head_dim * std::min(factor, 2.0));
  if (spec.rotary_dim < 2 || spec.rotary_dim > spec.head_dim || spec.rotary_dim % 2 != 0) {
    return config.Wrong("partial_rotary_factor",
                        absl::StrCat("an even part of head_dim, ", spec.head_dim));
  }
  return absl::OkStatus();
}

absl::Status SetListedLayers(const ModelConfig& config, const char* key, FeedForwardKind kind,
                             ModelSpec& spec) {
  const json* listed = config.Find(key);
  const std::string wanted = absl::StrCat("a list of layers below ", spec.layers);
  if (listed == nullptr || !listed->is_array()) return config.Wrong(key, wanted);
  for (const json& layer : *listed) {
    if (!layer.is_number_integer() || layer < 0 || layer >= spec.layers) {
      return config.Wrong(key, wanted);
    }
    spec.feed_forward[layer.get<size_t>()] = kind;
  }
  return absl::OkStatus();
}

void MakeAllLayers(FeedForwardKind kind, ModelSpec& spec) {
  spec.feed_forward.assign(static_cast<size_t>(spec.layers), kind);
}

}  // namespace lynx::model
