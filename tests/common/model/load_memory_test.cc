// Peak memory of loading, so these tests have a program of their own.
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "common/model/memory_need.h"
#include "common/model/model_runner.h"
#include "common/model/model_spec.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_dir.h"

namespace lynx::model {
namespace {

using ::lynx::testing::IsOk;
using ::lynx::testing::TempDir;

constexpr int64_t kHidden = 512;
constexpr int64_t kWidth = 512;
constexpr int64_t kVocab = 8192;
constexpr int64_t kExperts = 32;
constexpr int kLayers = 4;
constexpr int64_t kKvBlocks = 64;
constexpr int64_t kKvBytes = kKvBlocks * 16 * kLayers * 2 * 512 * 2;

enum class Experts { kApart, kFused, kQuantised, kMxfp4 };

// A model of some 210 MB of zeros, which take no space on the disk. Returns the bytes of its
// matrices, whose sizes leave nothing to pad.
int64_t WriteModel(const std::filesystem::path& dir, Experts experts) {
  nlohmann::json config = {
      {"model_type", "qwen3_moe"},      {"vocab_size", kVocab},           {"hidden_size", kHidden},
      {"num_hidden_layers", kLayers},   {"num_attention_heads", 8},       {"head_dim", 64},
      {"max_position_embeddings", 256}, {"tie_word_embeddings", true},    {"num_experts", kExperts},
      {"num_experts_per_tok", 4},       {"moe_intermediate_size", kWidth}};
  if (experts == Experts::kQuantised) {
    config["quantization_config"] = {{"quant_method", "fp8"}, {"weight_block_size", {128, 128}}};
  }
  if (experts == Experts::kMxfp4) {
    config.update({{"model_type", "gpt_oss"},
                   {"intermediate_size", kWidth},
                   {"attention_bias", false},
                   {"sliding_window", 128},
                   {"quantization_config", {{"quant_method", "mxfp4"}}}});
  }
  std::ofstream(dir / "config.json") << config;
  nlohmann::json header;
  int64_t end = 0;
  int64_t matrices = 0;
  auto place = [&](const std::string& name, const std::vector<int64_t>& shape, const char* dtype,
                   int64_t element) {
    int64_t bytes = element;
    for (int64_t extent : shape) bytes *= extent;
    header[name] = {{"dtype", dtype}, {"shape", shape}, {"data_offsets", {end, end + bytes}}};
    end += bytes;
  };
  auto add = [&](const std::string& name, const std::vector<int64_t>& shape) {
    place(name, shape, "BF16", 2);
    if (shape.size() > 1) matrices += shape[0] * shape[1] * (shape.size() > 2 ? shape[2] : 1) * 2;
  };
  auto add_linear = [&](const std::string& name, int64_t out, int64_t in) {
    if (experts != Experts::kQuantised) return add(name, {out, in});
    place(name + "_scale_inv", {out / 128, in / 128}, "F32", 4);
    place(name, {out, in}, "F8_E4M3", 1);
    matrices += out * in * 2;  // As packed.
  };
  auto add_mxfp4 = [&](const std::string& name, int64_t out, int64_t in) {
    place(name + "_blocks", {kExperts, out, in / 32, 16}, "U8", 1);
    place(name + "_scales", {kExperts, out, in / 32}, "U8", 1);
    place(name + "_bias", {kExperts, out}, "BF16", 2);
    matrices += kExperts * out * in * 2;  // As packed.
  };
  add("model.embed_tokens.weight", {kVocab, kHidden});
  add("model.norm.weight", {kHidden});
  for (int i = 0; i < kLayers; ++i) {
    const std::string layer = "model.layers." + std::to_string(i) + ".";
    add(layer + "input_layernorm.weight", {kHidden});
    add(layer + "post_attention_layernorm.weight", {kHidden});
    for (const char* name : {"q_proj", "k_proj", "v_proj", "o_proj"}) {
      add(layer + "self_attn." + name + ".weight", {kHidden, kHidden});
    }
    if (experts == Experts::kMxfp4) {
      add(layer + "self_attn.sinks", {8});
      add(layer + "mlp.router.weight", {kExperts, kHidden});
      add(layer + "mlp.router.bias", {kExperts});
      add_mxfp4(layer + "mlp.experts.gate_up_proj", 2 * kWidth, kHidden);
      add_mxfp4(layer + "mlp.experts.down_proj", kHidden, kWidth);
      continue;
    }
    add(layer + "self_attn.q_norm.weight", {64});
    add(layer + "self_attn.k_norm.weight", {64});
    add(layer + "mlp.gate.weight", {kExperts, kHidden});
    if (experts == Experts::kFused) {
      add(layer + "mlp.experts.gate_up_proj", {kExperts, 2 * kWidth, kHidden});
      add(layer + "mlp.experts.down_proj", {kExperts, kHidden, kWidth});
      continue;
    }
    for (int64_t e = 0; e < kExperts; ++e) {
      const std::string expert = layer + "mlp.experts." + std::to_string(e) + ".";
      add_linear(expert + "gate_proj.weight", kWidth, kHidden);
      add_linear(expert + "up_proj.weight", kWidth, kHidden);
      add_linear(expert + "down_proj.weight", kHidden, kWidth);
    }
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');  // As writers do: misaligned tensors are copied.
  const uint64_t length = text.size();
  const std::filesystem::path path = dir / "model.safetensors";
  std::ofstream(path, std::ios::binary)
      .write(reinterpret_cast<const char*>(&length), sizeof(length))
      .write(text.data(), static_cast<std::streamsize>(length));
  std::filesystem::resize_file(path, sizeof(length) + length + static_cast<uint64_t>(end));
  return matrices;
}

// A line of /proc/self/status, in bytes.
int64_t StatusBytes(const std::string& key) {
  std::ifstream status("/proc/self/status");
  std::string line;
  while (std::getline(status, line)) {
    if (line.starts_with(key + ":")) return std::stoll(line.substr(key.size() + 1)) * 1024;
  }
  return 0;
}

class LoadMemoryTest : public ::testing::TestWithParam<Experts> {};

TEST_P(LoadMemoryTest, NeverHoldsTheWeightsTwice) {
  TempDir dir;
  const int64_t weights = WriteModel(dir.path(), GetParam());
  std::ofstream clear("/proc/self/clear_refs");
  clear << "5" << std::flush;  // The peak begins anew.
  if (!clear.good()) GTEST_SKIP() << "this system does not reset the peak of memory";
  const int64_t before = StatusBytes("VmRSS");

  int64_t packed = 0;
  MemoryNeed need;
  auto runner = ModelRunner::Load({.model_dir = dir.path(),
                                   .kv_blocks = kKvBlocks,
                                   .max_step_rows = 16,
                                   .max_step_logits = 4,
                                   .threads = 2,
                                   .admit_memory =
                                       [&](const MemoryNeed& asked) {
                                         need = asked;
                                         EXPECT_EQ(packed, 0) << "before any weight is read";
                                         return absl::OkStatus();
                                       },
                                   .load_progress =
                                       [&](int64_t done, int64_t total) {
                                         EXPECT_GT(done, packed);
                                         EXPECT_LE(done, total);
                                         EXPECT_EQ(total, weights);
                                         packed = done;
                                       }});
  ASSERT_THAT(runner, IsOk());
  EXPECT_EQ(packed, weights);
  const double bound = 1.1 * static_cast<double>(weights + kKvBytes);
  EXPECT_LE(static_cast<double>(StatusBytes("VmHWM") - before), bound);
  // The file is let go, the packed weights are there.
  const int64_t after = StatusBytes("VmRSS") - before;
  EXPECT_LE(static_cast<double>(after), bound);
  EXPECT_GE(after, weights);

  EXPECT_GE(need.weights, weights);
  EXPECT_LE(static_cast<double>(need.weights), 1.01 * static_cast<double>(weights))
      << "and vectors";
  EXPECT_EQ(need.kv, kKvBlocks * (*runner)->kv().layout().BlockBytes());
  EXPECT_LE(after, need.total()) << "more than was asked for";
}

INSTANTIATE_TEST_SUITE_P(Experts, LoadMemoryTest,
                         ::testing::Values(Experts::kApart, Experts::kFused, Experts::kQuantised,
                                           Experts::kMxfp4));

}  // namespace
}  // namespace lynx::model
