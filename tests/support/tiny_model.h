#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "common/base/dtype.h"
#include "nlohmann/json.hpp"

namespace lynx::testing {

// A tensor of a model under construction.
struct TinyTensor {
  DType dtype = DType::kBf16;
  std::vector<int64_t> shape;
  std::vector<float> values;
};

// The bytes of a safetensors file.
std::string SafetensorsBytes(const std::map<std::string, TinyTensor>& tensors);
// The same from its parts: a header text and the data behind it.
std::string SafetensorsBytes(const std::string& header, const std::string& data);

struct TinyModelOptions {
  DType dtype = DType::kBf16;
  bool tied = true;
  bool head = false;                   // Give it an lm_head.weight of its own.
  std::vector<int> dense_layers = {};  // mlp_only_layers
  int experts = 4;
  int heads = 4;
  int kv_heads = 2;
  bool fused_experts = false;  // One tensor for all experts instead of one each.
};

// A qwen3_moe model of two layers with random weights, to be bent by a test and then written out.
// A tensor's values depend on its name alone, so models of different options share what they share.
struct TinyModel {
  nlohmann::json config;
  std::map<std::string, TinyTensor> tensors;

  static TinyModel Make(const TinyModelOptions& options = {});

  // Writes config.json and model.safetensors into `dir`.
  void Write(const std::filesystem::path& dir) const;
  // Writes config.json, `shards` files named by `shard_name` and their index.
  void WriteSharded(const std::filesystem::path& dir, int shards) const;
  static std::string ShardName(int shard);
};

}  // namespace lynx::testing
