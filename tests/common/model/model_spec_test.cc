#include "common/model/model_spec.h"

#include <cmath>
#include <fstream>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_model.h"

namespace lynx::model {
namespace {

using ::lynx::testing::IsOk;
using ::lynx::testing::StatusIs;
using ::lynx::testing::TempDir;
using ::lynx::testing::TinyModel;
using ::nlohmann::json;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

absl::StatusOr<ModelSpec> Load(const json& config, const std::string& generation = "") {
  TempDir dir;
  dir.Write("config.json", config.dump());
  if (!generation.empty()) dir.Write("generation_config.json", generation);
  return LoadModelSpec(dir.path());
}

json Good() { return TinyModel::Make().config; }

json With(const std::string& key, const json& value) {
  json config = Good();
  config[key] = value;
  return config;
}

TEST(ModelSpecTest, ReadsTheDemoModel) {
  const auto spec = LoadModelSpec("models/lynx-tiny-moe");
  ASSERT_THAT(spec, IsOk());
  EXPECT_EQ(spec->layers, 4);
  EXPECT_EQ(spec->query_heads, 4);
  EXPECT_EQ(spec->kv_heads, 2);
  EXPECT_EQ(spec->head_dim, 64);
  EXPECT_EQ(spec->experts, 64);
  EXPECT_EQ(spec->experts_per_token, 8);
  EXPECT_TRUE(spec->tied_embeddings && spec->gate.rule == moe::Gate::Rule::kRenormalise &&
              spec->query_key_norm == QueryKeyNorm::kPerHead);
  EXPECT_THAT(spec->eos_token_ids, ElementsAre(4093, 4095));  // One from each of two files.
}

TEST(ModelSpecTest, BothSpellingsMeanTheSame) {
  json newer = Good();
  newer.erase("rope_theta");
  newer["rope_parameters"] = {{"rope_theta", 5000000.0}, {"rope_type", "default"}};
  newer["num_local_experts"] = newer["num_experts"];
  newer.erase("num_experts");
  const auto spec = Load(newer);
  ASSERT_THAT(spec, IsOk());
  EXPECT_EQ(spec->rope_theta, 5000000.0);
  EXPECT_EQ(spec->experts, 4);
  EXPECT_EQ(Load(With("rope_theta", 5000000))->rope_theta, 5000000.0);
}

TEST(ModelSpecTest, StretchedRopeIsReadAndChecked) {
  using Kind = kernels::RopeScalingKind;
  json llama3 = {{"rope_type", "llama3"}, {"factor", 8},
                 {"low_freq_factor", 1},  {"high_freq_factor", 4},
                 {"rope_theta", 500},     {"original_max_position_embeddings", 8}};
  const auto spec = Load(With("rope_parameters", llama3));
  ASSERT_THAT(spec, IsOk());
  EXPECT_EQ(spec->rope_scaling, (kernels::RopeScaling{.kind = Kind::kLlama3,
                                                      .factor = 8,
                                                      .original_positions = 8,
                                                      .low_freq_factor = 1,
                                                      .high_freq_factor = 4}));
  EXPECT_EQ(spec->rope_theta, 500);
  const auto yarn = Load(With(
      "rope_scaling",
      {{"type", "yarn"}, {"factor", 40}, {"beta_slow", 2}, {"mscale", 0.7}, {"truncate", false}}));
  ASSERT_THAT(yarn, IsOk());
  EXPECT_EQ(yarn->rope_scaling, (kernels::RopeScaling{.kind = Kind::kYarn,
                                                      .factor = 40,
                                                      .original_positions = yarn->max_positions,
                                                      .beta_slow = 2,
                                                      .mscale = 0.7,
                                                      .truncate = false}));
  llama3["low_freq_factor"] = 5;  // Above the high one.
  EXPECT_THAT(Load(With("rope_parameters", llama3)),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("low_freq_factor")));
  llama3.erase("factor");
  EXPECT_THAT(Load(With("rope_parameters", llama3)),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("'factor'")));
}

TEST(ModelSpecTest, SparseLayersFollowTheRuleOfTheFamily) {
  json config = Good();
  config["num_hidden_layers"] = 6;
  config["decoder_sparse_step"] = 2;
  config["mlp_only_layers"] = {3};
  constexpr auto kDense = FeedForwardKind::kDense;
  constexpr auto kMoe = FeedForwardKind::kMoe;
  const auto spec = Load(config);
  ASSERT_THAT(spec, IsOk());
  EXPECT_THAT(spec->feed_forward, ElementsAre(kDense, kMoe, kDense, kDense, kDense, kMoe));
  EXPECT_EQ(spec->dense_intermediate_size, 28);
}

TEST(ModelSpecTest, ListsOfLayersAreLists) {
  std::ifstream file("tests/golden/variants/llama4-text/config.json");
  json config = json::parse(file);
  config["moe_layers"] = json::array({1});
  EXPECT_THAT(Load(config)->feed_forward,
              ElementsAre(FeedForwardKind::kDense, FeedForwardKind::kMoe));
  for (const json& bad : {json(1), json{{"a", 1}}, json::array({2}), json::array({"1"})}) {
    config["moe_layers"] = bad;
    EXPECT_THAT(Load(config),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("'moe_layers'")))
        << bad;
  }
}

TEST(ModelSpecTest, EosIdsComeFromBothFiles) {
  EXPECT_THAT(Load(Good(), R"({"eos_token_id": [1, 60, 2]})")->eos_token_ids,
              ElementsAre(1, 2, 60));
  EXPECT_THAT(Load(With("eos_token_id", json::array({5, 4})))->eos_token_ids, ElementsAre(4, 5));
  EXPECT_THAT(Load(With("eos_token_id", nullptr))->eos_token_ids, ElementsAre());
  EXPECT_THAT(Load(Good(), "[]"),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("generation_config.json")));
}

TEST(ModelSpecTest, MissingAndWrongKeysAreNamed) {
  for (const char* key :
       {"vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads",
        "max_position_embeddings", "num_experts_per_tok", "moe_intermediate_size"}) {
    json absent = Good();
    absent.erase(key);
    EXPECT_THAT(Load(absent), StatusIs(absl::StatusCode::kInvalidArgument,
                                       AllOf(HasSubstr(key), HasSubstr("config.json"))));
    for (const json& bad : {json(0), json(-1), json("7"), json(1.5), json(1e30), json(true),
                            json::array(), json(int64_t{1} << 40)}) {
      EXPECT_THAT(Load(With(key, bad)),
                  StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(key)))
          << bad;
    }
  }
  for (const auto& [key, bad] : {std::pair{"num_key_value_heads", json(3)},
                                 {"head_dim", json(7)},
                                 {"head_dim", json(258)},
                                 {"rms_norm_eps", json(0)},
                                 {"rope_theta", json("x")},
                                 {"tie_word_embeddings", json(1)},
                                 {"num_experts_per_tok", json(5)},
                                 {"mlp_only_layers", json::array({2})},
                                 {"eos_token_id", json(61)},
                                 {"eos_token_id", json("x")}}) {
    EXPECT_THAT(Load(With(key, bad)), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(key)));
  }
}

TEST(ModelSpecTest, WhatIsNotServedIsRefusedByName) {
  for (const auto& [key, value] : {std::pair{"model_type", json("bert")},
                                   {"hidden_act", json("gelu")},
                                   {"rope_scaling", json{{"type", "longrope"}, {"factor", 4}}},
                                   {"rope_parameters", json{{"rope_type", "dynamic"}}}}) {
    EXPECT_THAT(Load(With(key, value)), StatusIs(absl::StatusCode::kUnimplemented, HasSubstr(key)));
  }
  EXPECT_THAT(Load(With("model_type", "bert")),
              StatusIs(absl::StatusCode::kUnimplemented, HasSubstr("bert")));
  EXPECT_THAT(Load(With("rope_scaling", nullptr)), IsOk());
}

// The window of each layer that a config of 4 layers gives; -1: refused.
std::vector<int32_t> Windows(const std::string& type, const json& keys) {
  json config = Good();
  config.erase("mlp_only_layers");
  config["model_type"] = type;
  config["num_hidden_layers"] = 4;
  config["shared_expert_intermediate_size"] = 20;
  config.update(keys);
  const auto spec = Load(config);
  if (!spec.ok()) return {-1};
  std::vector<int32_t> windows;
  for (const LayerAttention& layer : spec->attention) windows.push_back(layer.reach.window);
  return windows;
}

TEST(ModelSpecTest, WindowsAreThoseThatTransformersReads) {
  const json half = {"sliding_attention", "full_attention", "full_attention", "sliding_attention"};
  const json on = {{"use_sliding_window", true}, {"sliding_window", 8}, {"max_window_layers", 3}};
  const json off = {{"use_sliding_window", false}, {"sliding_window", 8}};
  json listed = on;
  listed["layer_types"] = half;
  json unused = off;
  unused["layer_types"] = half;
  for (const char* type : {"mistral", "mixtral"}) {
    EXPECT_THAT(Windows(type, {{"sliding_window", 8}}), ElementsAre(8, 8, 8, 8)) << type;
    EXPECT_THAT(Windows(type, {{"sliding_window", nullptr}}), ElementsAre(0, 0, 0, 0)) << type;
    EXPECT_THAT(Windows(type, {{"sliding_window", 0}}), ElementsAre(-1)) << type;
  }
  EXPECT_THAT(Windows("mistral", json::object()), ElementsAre(4096, 4096, 4096, 4096));
  EXPECT_THAT(Windows("mixtral", json::object()), ElementsAre(0, 0, 0, 0));
  for (const char* type : {"qwen2", "qwen3", "qwen2_moe", "qwen3_moe"}) {
    EXPECT_THAT(Windows(type, off), ElementsAre(0, 0, 0, 0)) << type;
  }
  for (const char* type : {"qwen2", "qwen3"}) {
    EXPECT_THAT(Windows(type, on), ElementsAre(0, 0, 0, 8)) << type;
    EXPECT_THAT(Windows(type, {{"use_sliding_window", true}}), ElementsAre(0, 0, 0, 0)) << type;
  }
  EXPECT_THAT(Windows("qwen2_moe", on), ElementsAre(8, 0, 8, 0));
  EXPECT_THAT(Windows("qwen3_moe", on), ElementsAre(8, 8, 8, 8));
  EXPECT_THAT(Windows("qwen3_moe", {{"use_sliding_window", true}}),
              ElementsAre(4096, 4096, 4096, 4096));
  for (const char* type : {"qwen2", "qwen3", "qwen2_moe"}) {
    EXPECT_THAT(Windows(type, listed), ElementsAre(8, 0, 0, 8)) << type;
    EXPECT_THAT(Windows(type, unused), ElementsAre(-1)) << type;
  }
  EXPECT_THAT(Windows("llama", {{"sliding_window", 8}}), ElementsAre(-1));
}

TEST(ModelSpecTest, QuantisedWeightsAreThoseWithScalesOfBlocks) {
  const json fp8 = {{"quant_method", "fp8"},
                    {"fmt", "e4m3"},
                    {"activation_scheme", "dynamic"},
                    {"weight_block_size", {128, 64}}};
  const auto spec = Load(With("quantization_config", fp8));
  ASSERT_THAT(spec, IsOk());
  EXPECT_EQ(spec->fp8_block_rows, 128);
  EXPECT_EQ(spec->fp8_block_width, 64);
  EXPECT_THAT(spec->notes, ElementsAre(HasSubstr("quantization_config")));
  EXPECT_EQ(Load(Good())->fp8_block_rows, 0);
  for (const auto& [key, value] : {std::pair{"quant_method", json("gptq")},
                                   {"fmt", json("e5m2")},
                                   {"activation_scheme", json("static")},
                                   {"weight_block_size", json(nullptr)}}) {
    json other = fp8;
    other[key] = value;
    EXPECT_THAT(Load(With("quantization_config", other)),
                StatusIs(absl::StatusCode::kUnimplemented,
                         AllOf(HasSubstr("quantization_config"), HasSubstr(key))));
  }
  for (const json& block : {json(128), json({128}), json({128, 0}), json({128, "x"})}) {
    json other = fp8;
    other["weight_block_size"] = block;
    EXPECT_THAT(Load(With("quantization_config", other)),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("weight_block_size")))
        << block;
  }
  EXPECT_THAT(Load(With("quantization_config", 8)),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("quantization_config")));
}

TEST(ModelSpecTest, ExpertsMayBeInMxfp4WhereTheFamilyHasThem) {
  std::ifstream file("tests/golden/variants/gpt-oss-mxfp4/config.json");
  const json good = json::parse(file);
  const auto load = [&](const std::string& key, const json& value) {
    json config = good;
    config["quantization_config"][key] = value;
    return Load(config);
  };
  const auto spec = Load(good);
  ASSERT_THAT(spec, IsOk());
  EXPECT_TRUE(spec->mxfp4_experts);
  EXPECT_THAT(spec->notes, ElementsAre(HasSubstr("quantization_config")));
  EXPECT_FALSE(Load(Good())->mxfp4_experts);
  EXPECT_THAT(Load(With("quantization_config", good["quantization_config"])),
              StatusIs(absl::StatusCode::kUnimplemented,
                       AllOf(HasSubstr("'quant_method' is \"mxfp4\""), HasSubstr("fp8"))));
  EXPECT_THAT(load("quant_method", "nvfp4"),
              StatusIs(absl::StatusCode::kUnimplemented,
                       AllOf(HasSubstr("nvfp4"), HasSubstr("fp8 and mxfp4"))));

  constexpr char kKept[] = "modules_to_not_convert";
  EXPECT_THAT(load(kKept, nullptr), IsOk());
  for (const json& bad : {json("lm_head"), json{1}}) {
    EXPECT_THAT(load(kKept, bad), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(kKept)));
  }
  for (const char* other : {"", "lm_head", "mlp", "model.layers.1.self_attn", "mlp.router",
                            "model.layers.x", "experts.router"}) {
    EXPECT_THAT(load(kKept, {other}), IsOk()) << other;
  }
  for (const char* experts :
       {"model", "model.layers.1", "model.layers.*.mlp", "mlp.experts",
        "model.layers.12.mlp.experts", "experts", "model.layers.0.mlp.experts.down_proj"}) {
    EXPECT_THAT(
        load(kKept, {"lm_head", experts}),
        StatusIs(absl::StatusCode::kUnimplemented, AllOf(HasSubstr(kKept), HasSubstr(experts))));
  }
}

// --- DeepSeek

// A config of the golden fixtures, with changes.
absl::StatusOr<ModelSpec> LoadDeepseek(const std::string& variant, const json& changes = {}) {
  std::ifstream file("tests/golden/variants/" + variant + "/config.json");
  json config = json::parse(file);
  if (!changes.is_null()) config.update(changes);
  return Load(config);
}

TEST(DeepseekSpecTest, LatentsHaveTheirOwnSizes) {
  const auto spec = LoadDeepseek("deepseek-v3");
  ASSERT_THAT(spec, IsOk());
  EXPECT_TRUE(spec->has_latents());
  EXPECT_EQ(spec->q_lora_rank, 22);
  EXPECT_EQ(spec->kv_lora_rank, 26);
  EXPECT_EQ(spec->kv_heads, 1);
  EXPECT_EQ(spec->head_dim, 14 + 8);
  EXPECT_EQ(spec->rotary_dim, 8);
  EXPECT_EQ(spec->v_head_dim, 12);
  EXPECT_EQ(KvLayoutOf(*spec, DType::kBf16), (kv::KvLayout{.kind = kv::KvKind::kLatent,
                                                           .layers = 3,
                                                           .kv_heads = 1,
                                                           .head_dim = 26 + 8,
                                                           .dtype = DType::kBf16}));
  EXPECT_EQ(LoadDeepseek("deepseek-v2")->q_lora_rank, 0);
  EXPECT_FALSE(Load(Good())->has_latents());
}

// The square of yarn's factor multiplies the scale of scores, and only where mscale_all_dim is set.
TEST(DeepseekSpecTest, YarnScalesScores) {
  const double plain = 1 / std::sqrt(22.0);
  json yarn = {{"rope_type", "yarn"}, {"factor", 4.0}, {"rope_theta", 1000.0}, {"mscale", 1.0}};
  const auto scale = [&] {
    return LoadDeepseek("deepseek-v2", {{"rope_parameters", yarn}})->attention_scale;
  };
  EXPECT_FLOAT_EQ(scale(), static_cast<float>(plain));
  yarn["mscale_all_dim"] = 0;
  EXPECT_FLOAT_EQ(scale(), static_cast<float>(plain));
  yarn["mscale_all_dim"] = 0.5;
  EXPECT_FLOAT_EQ(scale(), static_cast<float>(plain * std::pow(0.05 * std::log(4.0) + 1, 2)));
}

TEST(DeepseekSpecTest, GatesAreThoseOfTheFamilies) {
  const auto greedy = LoadDeepseek("deepseek-v2", {{"n_group", 3}, {"topk_group", 1}});
  ASSERT_THAT(greedy, IsOk());
  EXPECT_EQ(greedy->gate.groups, 1) << "groups count only where topk_method says so";
  EXPECT_EQ(greedy->gate.rule, moe::Gate::Rule::kKeepMass);
  EXPECT_FLOAT_EQ(greedy->gate.scale, 1.6f);
  EXPECT_FALSE(greedy->ranking_bias);
  EXPECT_EQ(greedy->shared_intermediate_size, 40);
  const auto renormalised = LoadDeepseek("deepseek-v2", {{"norm_topk_prob", true}});
  ASSERT_THAT(renormalised, IsOk());
  EXPECT_EQ(renormalised->gate.rule, moe::Gate::Rule::kKeepMass) << "the key is not used";
  EXPECT_FLOAT_EQ(renormalised->gate.scale, 1.6f);

  const auto grouped = LoadDeepseek("deepseek-v2-grouped");
  ASSERT_THAT(grouped, IsOk());
  EXPECT_EQ(grouped->gate.groups, 4);
  EXPECT_EQ(grouped->gate.groups_kept, 2);
  EXPECT_EQ(grouped->gate.group_score, moe::Gate::GroupScore::kMax);

  const auto v3 = LoadDeepseek("deepseek-v3");
  ASSERT_THAT(v3, IsOk());
  EXPECT_EQ(v3->gate.score, moe::Gate::Score::kSigmoid);
  EXPECT_EQ(v3->gate.group_score, moe::Gate::GroupScore::kTopTwoSum);
  EXPECT_FLOAT_EQ(v3->gate.scale, 2.5f);
  EXPECT_TRUE(v3->ranking_bias);
}

TEST(DeepseekSpecTest, WhatDoesNotFitIsNamed) {
  for (const auto& [key, value] : {std::pair{"kv_lora_rank", json(0)},
                                   {"kv_lora_rank", json(769)},
                                   {"kv_lora_rank", json(nullptr)},
                                   {"qk_nope_head_dim", json(1 << 20)},
                                   {"qk_rope_head_dim", json(7)},
                                   {"qk_rope_head_dim", json(130)},
                                   {"v_head_dim", json(-1)},
                                   {"num_attention_heads", json(257)},
                                   {"n_group", json(3)},
                                   {"topk_group", json(5)}}) {
    EXPECT_THAT(LoadDeepseek("deepseek-v3", {{key, value}}),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(key)))
        << value;
  }
  for (const auto& [key, value] : {std::pair{"attention_bias", json(true)},
                                   {"rope_interleave", json(false)},
                                   {"scoring_func", json("softmax")},
                                   {"topk_method", json("greedy")}}) {
    EXPECT_THAT(LoadDeepseek("deepseek-v3", {{key, value}}),
                StatusIs(absl::StatusCode::kUnimplemented, HasSubstr(key)));
  }
  EXPECT_THAT(LoadDeepseek("deepseek-v2", {{"topk_method", "noaux_tc"}}),
              StatusIs(absl::StatusCode::kUnimplemented, HasSubstr("topk_method")));
}

TEST(ModelSpecTest, HostileFilesGetAStatus) {
  TempDir dir;
  EXPECT_THAT(LoadModelSpec(dir.path()),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("config")));
  for (const std::string& text :
       {std::string(), std::string("{"), std::string("[]"), std::string("null"),
        std::string(1'000'000, '['), "{\"a\":" + std::string(100'000, '[') + "}",
        std::string("{\"vocab_size\": 1e999}"), std::string("{\"a\":1,\"a\":2}"),
        std::string("\xff\xfe"), std::string(5'000'000, ' ')}) {
    dir.Write("config.json", text);
    EXPECT_THAT(LoadModelSpec(dir.path()), StatusIs(absl::StatusCode::kInvalidArgument))
        << text.substr(0, 40);
  }
}

}  // namespace
}  // namespace lynx::model
