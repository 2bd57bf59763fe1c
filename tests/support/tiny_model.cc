#include "tests/support/tiny_model.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>
#include <functional>
#include <random>

#include "common/base/check.h"
#include "tests/support/kernel_test.h"

namespace lynx::testing {
namespace {

constexpr int kVocab = 61;
constexpr int kHidden = 24;
constexpr int kHeadDim = 6;
constexpr int kExpertWidth = 20;
constexpr int kDenseWidth = 28;
constexpr int kLayers = 2;

TinyTensor Random(const std::string& name, const std::vector<int64_t>& shape, DType dtype) {
  TinyTensor tensor{.dtype = dtype, .shape = shape, .values = {}};
  size_t size = 1;
  for (int64_t extent : shape) size *= static_cast<size_t>(extent);
  uint32_t seed = 2166136261u;
  for (char c : name) seed = (seed ^ static_cast<uint8_t>(c)) * 16777619u;
  tensor.values = RandomNormal(size, seed);
  for (float& v : tensor.values) {
    // Every element type holds a bf16 value of this size, so models of all types are equal.
    v = kernels::RoundToBf16(shape.size() == 1 ? 1.0f + 0.1f * v : 0.3f * v);
    v = kernels::F16ToF32(kernels::F32ToF16(v));
  }
  return tensor;
}

void WriteFile(const std::filesystem::path& path, const std::string& bytes) {
  std::ofstream out(path, std::ios::binary);
  out.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  LYNX_CHECK(out.good());
}

// Joins tensors of one shape along a new first axis.
TinyTensor Stack(const std::vector<const TinyTensor*>& parts) {
  TinyTensor all{.dtype = parts[0]->dtype, .shape = parts[0]->shape, .values = {}};
  all.shape.insert(all.shape.begin(), static_cast<int64_t>(parts.size()));
  for (const TinyTensor* part : parts) {
    all.values.insert(all.values.end(), part->values.begin(), part->values.end());
  }
  return all;
}

}  // namespace

std::string SafetensorsBytes(const std::string& header, const std::string& data) {
  const uint64_t length = header.size();
  std::string bytes(8, '\0');
  std::memcpy(bytes.data(), &length, 8);
  return bytes + header + data;
}

std::string SafetensorsBytes(const std::map<std::string, TinyTensor>& tensors) {
  nlohmann::json header = nlohmann::json::object();
  std::string data;
  for (const auto& [name, tensor] : tensors) {
    const std::vector<std::byte> bytes = Encode(tensor.values, tensor.dtype);
    std::string dtype(Name(tensor.dtype));
    std::ranges::transform(dtype, dtype.begin(),
                           [](char c) { return static_cast<char>(toupper(c)); });
    header[name] = {{"dtype", dtype},
                    {"shape", tensor.shape},
                    {"data_offsets", {data.size(), data.size() + bytes.size()}}};
    data.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  }
  return SafetensorsBytes(header.dump(), data);
}

TinyModel TinyModel::Make(const TinyModelOptions& options) {
  TinyModel model;
  model.config = {{"model_type", "qwen3_moe"},
                  {"hidden_act", "silu"},
                  {"vocab_size", kVocab},
                  {"hidden_size", kHidden},
                  {"intermediate_size", kDenseWidth},
                  {"num_hidden_layers", kLayers},
                  {"num_attention_heads", options.heads},
                  {"num_key_value_heads", options.kv_heads},
                  {"head_dim", kHeadDim},
                  {"max_position_embeddings", 256},
                  {"rms_norm_eps", 1e-6},
                  {"rope_theta", 10000.0},
                  {"tie_word_embeddings", options.tied},
                  {"num_experts", options.experts},
                  {"num_experts_per_tok", 2},
                  {"moe_intermediate_size", kExpertWidth},
                  {"norm_topk_prob", true},
                  {"mlp_only_layers", options.dense_layers},
                  {"eos_token_id", 60}};
  auto add = [&](const std::string& name, const std::vector<int64_t>& shape) {
    model.tensors[name] = Random(name, shape, options.dtype);
  };
  auto add_mlp = [&](const std::string& prefix, int64_t width) {
    add(prefix + "gate_proj.weight", {width, kHidden});
    add(prefix + "up_proj.weight", {width, kHidden});
    add(prefix + "down_proj.weight", {kHidden, width});
  };
  add("model.embed_tokens.weight", {kVocab, kHidden});
  add("model.norm.weight", {kHidden});
  if (options.head) add("lm_head.weight", {kVocab, kHidden});
  for (int i = 0; i < kLayers; ++i) {
    const std::string layer = "model.layers." + std::to_string(i) + ".";
    add(layer + "input_layernorm.weight", {kHidden});
    add(layer + "post_attention_layernorm.weight", {kHidden});
    add(layer + "self_attn.q_proj.weight", {options.heads * kHeadDim, kHidden});
    add(layer + "self_attn.k_proj.weight", {options.kv_heads * kHeadDim, kHidden});
    add(layer + "self_attn.v_proj.weight", {options.kv_heads * kHeadDim, kHidden});
    add(layer + "self_attn.o_proj.weight", {kHidden, options.heads * kHeadDim});
    add(layer + "self_attn.q_norm.weight", {kHeadDim});
    add(layer + "self_attn.k_norm.weight", {kHeadDim});
    if (std::ranges::count(options.dense_layers, i) > 0) {
      add_mlp(layer + "mlp.", kDenseWidth);
      continue;
    }
    add(layer + "mlp.gate.weight", {options.experts, kHidden});
    const std::string experts = layer + "mlp.experts.";
    for (int e = 0; e < options.experts; ++e)
      add_mlp(experts + std::to_string(e) + ".", kExpertWidth);
    if (!options.fused_experts) continue;
    std::vector<const TinyTensor*> gate_up;
    std::vector<const TinyTensor*> down;
    for (int e = 0; e < options.experts; ++e) {
      const std::string expert = experts + std::to_string(e) + ".";
      gate_up.push_back(&model.tensors[expert + "gate_proj.weight"]);
      gate_up.push_back(&model.tensors[expert + "up_proj.weight"]);
      down.push_back(&model.tensors[expert + "down_proj.weight"]);
    }
    TinyTensor gates = Stack(gate_up);
    gates.shape = {options.experts, 2 * kExpertWidth, kHidden};
    TinyTensor downs = Stack(down);
    std::erase_if(model.tensors,
                  [&](const auto& entry) { return entry.first.starts_with(experts); });
    model.tensors[experts + "gate_up_proj"] = std::move(gates);
    model.tensors[experts + "down_proj"] = std::move(downs);
  }
  return model;
}

void TinyModel::Write(const std::filesystem::path& dir) const {
  std::filesystem::create_directories(dir);
  WriteFile(dir / "config.json", config.dump());
  WriteFile(dir / "model.safetensors", SafetensorsBytes(tensors));
}

std::string TinyModel::ShardName(int shard) { return "part-" + std::to_string(shard) + ".weights"; }

void TinyModel::WriteSharded(const std::filesystem::path& dir, int shards) const {
  std::filesystem::create_directories(dir);
  WriteFile(dir / "config.json", config.dump());
  std::vector<std::map<std::string, TinyTensor>> parts(static_cast<size_t>(shards));
  nlohmann::json map = nlohmann::json::object();
  int next = 0;
  for (const auto& [name, tensor] : tensors) {
    map[name] = ShardName(next);
    parts[static_cast<size_t>(next)][name] = tensor;
    next = (next + 1) % shards;
  }
  for (int i = 0; i < shards; ++i) {
    WriteFile(dir / ShardName(i), SafetensorsBytes(parts[static_cast<size_t>(i)]));
  }
  WriteFile(dir / "model.safetensors.index.json",
            nlohmann::json{{"metadata", {{"total_size", 0}}}, {"weight_map", map}}.dump());
}

}  // namespace lynx::testing
