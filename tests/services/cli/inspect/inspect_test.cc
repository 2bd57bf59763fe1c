#include "services/cli/inspect/inspect.h"

#include <cmath>
#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "services/cli/bench/model_shape.h"
#include "services/cli/inspect/memory_plan.h"
#include "services/cli/inspect/model_inspection.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_model.h"

namespace lynx::cli {
namespace {

using ::lynx::testing::IsOk;
using ::lynx::testing::StatusIs;
using ::lynx::testing::TempDir;
using ::lynx::testing::TinyModel;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::Gt;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Lt;
using ::testing::MatchesRegex;
using ::testing::Not;
using ::testing::SizeIs;
using Json = nlohmann::json;

struct Outcome {
  int status = 0;
  std::string out;
  std::string err;
};

Outcome Inspect(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), "inspect");
  std::vector<const char*> argv;
  for (const std::string& argument : arguments) argv.push_back(argument.c_str());
  std::ostringstream out;
  std::ostringstream err;
  const int status = RunInspect(static_cast<int>(argv.size()), argv.data(), out, err);
  return {status, out.str(), err.str()};
}

// --- Released models, by their config.json without what no reader needs.

struct Released {
  const char* name;
  const char* config;
  double total_billions;  // As published.
  double active_billions;
  bool active_has_embedding;  // Whether that counts the embedding, of which a token reads a row.
  int64_t kv_token_bytes;
};

constexpr Released kReleased[] = {
    {"OLMoE-1B-7B", R"({"model_type": "olmoe", "vocab_size": 50304, "hidden_size": 2048,
      "num_hidden_layers": 16, "num_attention_heads": 16, "num_key_value_heads": 16,
      "max_position_embeddings": 4096, "num_experts": 64, "num_experts_per_tok": 8,
      "intermediate_size": 1024})",
     6.9, 1.3, true, 128 << 10},
    {"Qwen1.5-MoE-A2.7B", R"({"model_type": "qwen2_moe", "vocab_size": 151936,
      "hidden_size": 2048, "num_hidden_layers": 24, "num_attention_heads": 16,
      "num_key_value_heads": 16, "max_position_embeddings": 8192, "num_experts": 60,
      "num_experts_per_tok": 4, "moe_intermediate_size": 1408, "intermediate_size": 5632,
      "shared_expert_intermediate_size": 5632})",
     14.3, 2.7, true, 192 << 10},
    {"Qwen2-57B-A14B", R"({"model_type": "qwen2_moe", "vocab_size": 151936,
      "hidden_size": 3584, "num_hidden_layers": 28, "num_attention_heads": 28,
      "num_key_value_heads": 4, "max_position_embeddings": 32768, "num_experts": 64,
      "num_experts_per_tok": 8, "moe_intermediate_size": 2560, "intermediate_size": 18944,
      "shared_expert_intermediate_size": 20480})",
     57.4, 14.2, true, 56 << 10},
    {"Qwen3-30B-A3B", R"({"model_type": "qwen3_moe", "vocab_size": 151936,
      "hidden_size": 2048, "num_hidden_layers": 48, "num_attention_heads": 32,
      "num_key_value_heads": 4, "head_dim": 128, "max_position_embeddings": 40960,
      "num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768,
      "intermediate_size": 6144})",
     30.5, 3.3, true, 96 << 10},
    {"Qwen3-235B-A22B", R"({"model_type": "qwen3_moe", "vocab_size": 151936,
      "hidden_size": 4096, "num_hidden_layers": 94, "num_attention_heads": 64,
      "num_key_value_heads": 4, "head_dim": 128, "max_position_embeddings": 40960,
      "num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 1536,
      "intermediate_size": 12288})",
     235, 22, true, 188 << 10},
    {"Mixtral-8x7B", R"({"model_type": "mixtral", "vocab_size": 32000, "hidden_size": 4096,
      "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
      "max_position_embeddings": 32768, "num_local_experts": 8, "num_experts_per_tok": 2,
      "intermediate_size": 14336})",
     46.7, 12.9, true, 128 << 10},
    {"Mixtral-8x22B", R"({"model_type": "mixtral", "vocab_size": 32768, "hidden_size": 6144,
      "num_hidden_layers": 56, "num_attention_heads": 48, "num_key_value_heads": 8,
      "max_position_embeddings": 65536, "num_local_experts": 8, "num_experts_per_tok": 2,
      "intermediate_size": 16384})",
     141, 39, true, 224 << 10},
    {"DeepSeek-V2-Lite", R"({"model_type": "deepseek_v2", "vocab_size": 102400,
      "hidden_size": 2048, "num_hidden_layers": 27, "num_attention_heads": 16,
      "q_lora_rank": null, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
      "v_head_dim": 128, "max_position_embeddings": 163840, "n_routed_experts": 64,
      "n_shared_experts": 2, "num_experts_per_tok": 6, "moe_intermediate_size": 1408,
      "intermediate_size": 10944, "first_k_dense_replace": 1})",
     15.7, 2.4, false, 27 * 1152},
    {"DeepSeek-V2", R"({"model_type": "deepseek_v2", "vocab_size": 102400,
      "hidden_size": 5120, "num_hidden_layers": 60, "num_attention_heads": 128,
      "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
      "v_head_dim": 128, "max_position_embeddings": 163840, "n_routed_experts": 160,
      "n_shared_experts": 2, "num_experts_per_tok": 6, "moe_intermediate_size": 1536,
      "intermediate_size": 12288, "first_k_dense_replace": 1, "n_group": 8, "topk_group": 3,
      "topk_method": "group_limited_greedy"})",
     236, 21, false, 60 * 1152},
    {"DeepSeek-V3", R"({"model_type": "deepseek_v3", "vocab_size": 129280,
      "hidden_size": 7168, "num_hidden_layers": 61, "num_attention_heads": 128,
      "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
      "v_head_dim": 128, "max_position_embeddings": 163840, "n_routed_experts": 256,
      "n_shared_experts": 1, "num_experts_per_tok": 8, "moe_intermediate_size": 2048,
      "intermediate_size": 18432, "first_k_dense_replace": 3, "n_group": 8, "topk_group": 4,
      "routed_scaling_factor": 2.5})",
     671, 37, false, 61 * 1152},
    {"gpt-oss-20b", R"({"model_type": "gpt_oss", "vocab_size": 201088, "hidden_size": 2880,
      "num_hidden_layers": 24, "num_attention_heads": 64, "num_key_value_heads": 8,
      "head_dim": 64, "max_position_embeddings": 131072, "num_local_experts": 32,
      "num_experts_per_tok": 4, "intermediate_size": 2880, "sliding_window": 128})",
     20.9, 3.6, false, 48 << 10},
    {"gpt-oss-120b", R"({"model_type": "gpt_oss", "vocab_size": 201088, "hidden_size": 2880,
      "num_hidden_layers": 36, "num_attention_heads": 64, "num_key_value_heads": 8,
      "head_dim": 64, "max_position_embeddings": 131072, "num_local_experts": 128,
      "num_experts_per_tok": 4, "intermediate_size": 2880, "sliding_window": 128})",
     116.8, 5.1, false, 72 << 10},
    {"GLM-4.5-Air", R"({"model_type": "glm4_moe", "vocab_size": 151552, "hidden_size": 4096,
      "num_hidden_layers": 46, "num_attention_heads": 96, "num_key_value_heads": 8,
      "head_dim": 128, "max_position_embeddings": 131072, "n_routed_experts": 128,
      "n_shared_experts": 1, "num_experts_per_tok": 8, "moe_intermediate_size": 1408,
      "intermediate_size": 10944, "first_k_dense_replace": 1, "attention_bias": true})",
     106, 12, false, 184 << 10},
};

class ReleasedTest : public ::testing::TestWithParam<Released> {};

// To a unit of the last digit that is published.
TEST_P(ReleasedTest, SizesAreThosePublished) {
  const Released& model = GetParam();
  TempDir dir;
  dir.Write("config.json", model.config);
  const auto found = InspectModel((dir.path() / "config.json").string());
  ASSERT_THAT(found, IsOk());
  ASSERT_THAT(found->problems, IsEmpty());
  const auto unit = [](double published) { return published == std::floor(published) ? 1 : 0.1; };
  const double total = static_cast<double>(found->parameters.total) / 1e9;
  EXPECT_NEAR(total, model.total_billions, unit(model.total_billions));
  const int64_t active =
      found->parameters.active - (model.active_has_embedding ? 0 : found->parameters.embedding);
  const double billions = static_cast<double>(active) / 1e9;
  EXPECT_NEAR(billions, model.active_billions, unit(model.active_billions));
  int64_t kv = 0;
  for (const LayerKind& kind : LayerKindsOf(*found->spec)) kv += kind.layers * kind.kv_token_bytes;
  EXPECT_EQ(kv, model.kv_token_bytes);
  EXPECT_EQ(found->weight_bytes, 2 * found->parameters.total);
}

INSTANTIATE_TEST_SUITE_P(Models, ReleasedTest, ::testing::ValuesIn(kReleased),
                         [](const ::testing::TestParamInfo<Released>& model) {
                           std::string name = model.param.name;
                           std::erase_if(name, [](char c) { return !isalnum(c); });
                           return name;
                         });

// --- Memory

TEST(MemoryPlanTest, IsTheSumThatItShows) {
  const auto found = InspectModel("olmoe-1b-7b");
  ASSERT_THAT(found, IsOk());
  const MemoryPlan plan =
      PlanMemory(*found, {.memory_bytes = int64_t{24} << 30, .context = 4090, .batch = 8});
  EXPECT_EQ(plan.weights, 2 * found->parameters.total);
  EXPECT_EQ(plan.block, 16 * (128 << 10));
  EXPECT_EQ(plan.sequence_blocks, 256) << "whole blocks";
  EXPECT_EQ(plan.kv, 8.0 * 256 * 16 * (128 << 10));
  EXPECT_EQ(plan.total, static_cast<double>(plan.weights) + plan.kv + plan.step);
  EXPECT_TRUE(plan.fits);
  EXPECT_GT(plan.step, 8 * 50304 * 4) << "logits";
}

TEST(MemoryPlanTest, WhatWouldFitFitsAndMoreDoesNot) {
  const auto found = InspectModel("deepseek-v2-lite");
  ASSERT_THAT(found, IsOk());
  for (const int64_t gib : {30, 32, 40, 80}) {
    const MemoryQuestion asked{.memory_bytes = gib << 30, .context = 20'000, .batch = 3};
    const MemoryPlan plan = PlanMemory(*found, asked);
    MemoryQuestion other = asked;
    const auto fits = [&] { return PlanMemory(*found, other).fits; };
    other.batch = plan.most_batch + 1;
    EXPECT_FALSE(fits()) << gib;
    other.batch = plan.most_batch;
    EXPECT_TRUE(other.batch == 0 || fits()) << gib;
    other = asked;
    other.context = plan.most_context + 1;
    EXPECT_TRUE(plan.most_context == found->spec->max_positions || !fits()) << gib;
    other.context = plan.most_context;
    EXPECT_TRUE(other.context == 0 || fits()) << gib;
  }
  const MemoryPlan none = PlanMemory(*found, {.memory_bytes = 1 << 30, .context = 1, .batch = 1});
  EXPECT_EQ(none.most_batch, 0);
  EXPECT_EQ(none.most_context, 0);
}

TEST(MemoryPlanTest, TheLargestQuestionIsAnswered) {
  const auto found = InspectModel("mixtral-8x7b");
  ASSERT_THAT(found, IsOk());
  const MemoryPlan plan = PlanMemory(*found, {.memory_bytes = std::numeric_limits<int64_t>::max(),
                                              .context = 1 << 24,
                                              .batch = kMaxPlannedBatch,
                                              .kv_dtype = DType::kF32});
  EXPECT_EQ(plan.kv, 1048576.0 * 1048576 * 4 * 1048576);
}

// --- Folders

TEST(InspectTest, AWholeFolderIsSound) {
  TempDir dir;
  TinyModel::Make({.dtype = DType::kF32}).WriteSharded(dir.path(), 3);
  const auto found = InspectModel(dir.path().string());
  ASSERT_THAT(found, IsOk());
  EXPECT_THAT(found->problems, IsEmpty());
  ASSERT_TRUE(found->stored.has_value());
  EXPECT_EQ(found->stored->bytes, 4 * found->parameters.total);
  EXPECT_EQ(found->stored->tensors, 3 * 4 * 2 + 9 * 2 + 2);
  EXPECT_GE(found->weight_bytes, found->stored->bytes) << "packed in panels";
  EXPECT_GE(found->expert_bytes, 4 * found->parameters.expert);
  EXPECT_EQ(Inspect({dir.path().string()}).status, 0);
  EXPECT_EQ(Inspect({dir.path().string() + "/"}).status, 0);
}

TEST(InspectTest, EveryProblemOfTheTensorsIsListed) {
  TinyModel model = TinyModel::Make();
  model.tensors.erase("model.layers.0.self_attn.q_norm.weight");
  model.tensors.erase("model.layers.1.mlp.experts.2.up_proj.weight");
  model.tensors["model.norm.weight"].shape = {4, 6};
  model.tensors["model.layers.7.stray.weight"] = {DType::kBf16, {1}, {1}};
  TempDir dir;
  model.Write(dir.path());
  const Outcome outcome = Inspect({dir.path().string(), "--json"});
  EXPECT_EQ(outcome.status, 1);
  const Json json = Json::parse(outcome.out);
  const std::vector<std::string> problems = json["problems"];
  EXPECT_THAT(
      problems,
      ElementsAre(AllOf(HasSubstr("missing"), HasSubstr("layers.0.self_attn.q_norm")),
                  AllOf(HasSubstr("missing"), HasSubstr("layers.1.mlp.experts.2.up_proj")),
                  AllOf(HasSubstr("model.norm.weight"), HasSubstr("[4, 6]"), HasSubstr("[24]")),
                  HasSubstr("model.layers.7.stray.weight")));
  EXPECT_EQ(json["family"], "qwen3_moe") << "what is sound is told all the same";
}

// Of 4 layers of 4000 experts that are not there, 48000 tensors are missing.
TEST(InspectTest, WeightsOfAnotherFormatAreAProblem) {
  TempDir dir;
  dir.Write("config.json", TinyModel::Make().config.dump());
  dir.Write("pytorch_model.bin", "PK");
  EXPECT_THAT(InspectModel(dir.path().string())->problems,
              ElementsAre(AllOf(HasSubstr("safetensors"), HasSubstr("pytorch_model.bin"))));
}

TEST(InspectTest, OfManyProblemsOfAKindAFewAreListed) {
  TinyModel model = TinyModel::Make();
  model.config["num_experts"] = 4000;
  TempDir dir;
  model.Write(dir.path());
  const auto found = InspectModel(dir.path().string());
  ASSERT_THAT(found, IsOk());
  EXPECT_THAT(found->problems, SizeIs(AllOf(Gt(50), Lt(110))));
  EXPECT_THAT(found->problems, Contains(MatchesRegex("missing from the weights: [0-9]+ more")));
}

TEST(InspectTest, ATemplateThatFailsAlwaysIsNoted) {
  TempDir dir;
  std::filesystem::copy("models/lynx-tiny-moe", dir.path(),
                        std::filesystem::copy_options::recursive);
  dir.Write("chat_template.jinja", "\n{{ messages.content.upper() }}");
  EXPECT_THAT(InspectModel(dir.path().string())->notes,
              Contains(AllOf(HasSubstr("the chat template fails"), HasSubstr("line 2"))));
  EXPECT_THAT(InspectModel("models/lynx-tiny-moe")->notes,
              Not(Contains(HasSubstr("the chat template fails"))));
}

TEST(InspectTest, ProblemsOfAllFilesAreListedAtOnce) {
  TinyModel model = TinyModel::Make();
  model.config["num_experts_per_tok"] = 40;
  TempDir dir;
  model.WriteSharded(dir.path(), 3);
  std::filesystem::remove(dir.path() / TinyModel::ShardName(1));
  dir.Write("tokenizer.json", "{");
  const Outcome outcome = Inspect({dir.path().string()});
  EXPECT_EQ(outcome.status, 1);
  EXPECT_THAT(outcome.out, AllOf(HasSubstr("'num_experts_per_tok'"), HasSubstr("part-1.weights"),
                                 HasSubstr("tokenizer.json")));
}

TEST(InspectTest, AConfigAloneSaysThatWeightsAreAbsent) {
  TempDir dir;
  dir.Write("config.json", TinyModel::Make().config.dump());
  const auto found = InspectModel(dir.path().string());
  ASSERT_THAT(found, IsOk());
  EXPECT_THAT(found->problems, IsEmpty());
  EXPECT_FALSE(found->stored.has_value());
  EXPECT_THAT(found->notes, Contains(HasSubstr("no weight files")));
  // An index alone promises weights.
  dir.Write("model.safetensors.index.json", R"({"weight_map":{"a":"b.safetensors"}})");
  EXPECT_THAT(InspectModel(dir.path().string())->problems, ElementsAre(HasSubstr("b.safetensors")));
}

TEST(InspectTest, WhatIsUnusualIsNoted) {
  TempDir dir;
  TinyModel::Make({.tied = true, .head = true}).Write(dir.path());
  dir.Write("extra.safetensors", "stray");
  EXPECT_THAT(InspectModel(dir.path().string())->notes,
              AllOf(Contains(HasSubstr("tied")), Contains(HasSubstr("lm_head.weight")),
                    Contains(HasSubstr("extra.safetensors"))));
  for (const auto& [variant, words] :
       {std::pair{"gpt-oss", std::vector<const char*>{"sinks", "window of 8", "experts have biases",
                                                      "routers have biases"}},
        {"olmoe-clipped", {"clip_qkv"}},
        {"llama4", {"chunk of 16", "grow", "shared expert"}},
        {"deepseek-v3-fp8", {"quantization_config", "shared expert"}},
        {"llama-biased", {"attention has biases"}}}) {
    const auto found = InspectModel(std::string("tests/golden/variants/") + variant);
    ASSERT_THAT(found, IsOk());
    for (const char* word : words) EXPECT_THAT(found->notes, Contains(HasSubstr(word))) << variant;
  }
}

// Counted as what they stand for, and kept so in memory; in their files they take less.
TEST(InspectTest, QuantisedWeightsAreSound) {
  for (const auto& [variant, type] :
       {std::pair{"deepseek-v3-fp8", "f8_e4m3"}, {"gpt-oss-mxfp4", "u8"}}) {
    const auto found = InspectModel(std::string("tests/golden/variants/") + variant);
    ASSERT_THAT(found, IsOk());
    EXPECT_THAT(found->problems, IsEmpty()) << variant;
    EXPECT_EQ(found->stored->bytes_of_type.count(type), 1u) << variant;
    EXPECT_GE(found->weight_bytes, 2 * found->parameters.total) << variant;
    EXPECT_GE(found->expert_bytes, 2 * ExpertParameters(*found->spec)) << variant;
  }
}

TEST(InspectTest, JsonHasTheFiguresOfTheText) {
  const Outcome text = Inspect({"qwen3-30b-a3b", "--memory=80GiB", "--context=4096", "--batch=16"});
  EXPECT_EQ(text.status, 0);
  EXPECT_THAT(text.out, AllOf(HasSubstr("qwen3_moe"), HasSubstr("30.53 B"), HasSubstr("98304"),
                              HasSubstr("alpha 3, beta 2"), HasSubstr("weights sum to 1"),
                              HasSubstr("fits")));
  const Json json = Json::parse(
      Inspect({"qwen3-30b-a3b", "--memory=80GiB", "--context=4096", "--batch=16", "--json"}).out);
  EXPECT_EQ(json["kv_token_bytes"], 98304);
  EXPECT_EQ(json["kv_layers"][0]["layers"], 48);
  EXPECT_EQ(json["lynx"]["beta"], 2);
  EXPECT_EQ(json["memory"]["sequence_blocks"], 256);
  EXPECT_EQ(json["memory"]["fits"], true);
  EXPECT_EQ(json["problems"], Json::array());
}

TEST(InspectTest, RanksShareTheModel) {
  const Json whole = Json::parse(Inspect({"qwen3-30b-a3b", "--json"}).out);
  EXPECT_FALSE(whole.contains("parallel"));
  const Outcome outcome = Inspect({"qwen3-30b-a3b", "--tp=2", "--dp=2", "--json"});
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  const Json parallel = Json::parse(outcome.out)["parallel"];
  EXPECT_EQ(parallel["dp"], 2);
  ASSERT_EQ(parallel["ranks"].size(), 4u);
  EXPECT_EQ(parallel["ranks"][3]["query_heads"], Json({16, 32}));
  EXPECT_EQ(parallel["ranks"][3]["kv_heads"], Json({2, 4}));
  EXPECT_EQ(parallel["ranks"][3]["experts"].size(), 32u);
  EXPECT_EQ(parallel["ranks"][3]["experts"][0], 96);
  EXPECT_EQ(parallel["ranks"][3]["expert_columns"], Json({0, 768}));
  EXPECT_EQ(parallel["ranks"][3]["kv_token_bytes"].get<int64_t>() * 2, whole["kv_token_bytes"]);
  // A quarter of the experts, half of attention and vocabulary, all of norms and routers.
  const double experts = 48.0 * 128 * 3 * 2048 * 768 * 2;
  const double rest = whole["weight_bytes"].get<double>() - experts;
  const double routers = 48.0 * 128 * 2048 * 2;
  EXPECT_NEAR(parallel["ranks"][3]["weight_bytes"].get<double>(),
              experts / 4 + (rest - routers) / 2 + routers, 1e6);

  const Outcome text = Inspect({"qwen3-30b-a3b", "--tp=2", "--dp=2"});
  EXPECT_THAT(text.out, AllOf(HasSubstr("4: attention TP 2 x DP 2, experts EP 4 x TP 1"),
                              HasSubstr("query heads 16-31, KV heads 2-3, experts 96-127 "
                                        "(columns 0-767), vocabulary 75968-151935; ")));
  // A spare slot of each of the 48 layers.
  const Json spare = Json::parse(
      Inspect({"qwen3-30b-a3b", "--tp=4", "--ep=4", "--ep-spare=1", "--json"}).out)["parallel"];
  EXPECT_EQ(spare["ranks"][3]["experts"].size(), 33u);
  const Json none =
      Json::parse(Inspect({"qwen3-30b-a3b", "--tp=4", "--ep=4", "--json"}).out)["parallel"];
  EXPECT_NEAR(spare["ranks"][3]["weight_bytes"].get<double>() -
                  none["ranks"][3]["weight_bytes"].get<double>(),
              experts / 128, 1e5);
  const Outcome many = Inspect({"qwen3-30b-a3b", "--tp=2", "--ep=2", "--ep-spare=65"});
  EXPECT_EQ(many.status, 1);
  EXPECT_THAT(many.err, HasSubstr("ep-spare 65 is not in [0, 64], of 128 experts in 2 parts"));
  const Outcome odd = Inspect({"qwen3-30b-a3b", "--tp=3"});
  EXPECT_EQ(odd.status, 1);
  EXPECT_THAT(odd.err, HasSubstr("32 query heads cannot be split over tp 3"));
}

TEST(InspectTest, RanksAreThoseOfANodeWithTheseOptions) {
  const Json parallel =
      Json::parse(Inspect({"qwen3-30b-a3b", "--dp=4", "--ep=0", "--json"}).out)["parallel"];
  EXPECT_EQ(parallel["ep"], 4);
  EXPECT_EQ(Json::parse(Inspect({"qwen3-30b-a3b", "--tp=4", "--json"}).out)["parallel"]["ep"], 1);
  for (const auto& [flags, message] : std::vector<std::pair<std::vector<std::string>, std::string>>{
           {{"--ep=4"}, "ep 4 does not divide the 1 ranks"},
           {{"--dp=2", "--ep-spare=1"}, "ep-spare 1 with dp 2"},
           {{"--tp=2", "--ep-spare=1"}, "ep-spare 1 needs an ep of 2 or more"}}) {
    std::vector<std::string> arguments = {"qwen3-30b-a3b"};
    arguments.insert(arguments.end(), flags.begin(), flags.end());
    const Outcome refused = Inspect(arguments);
    EXPECT_EQ(refused.status, 1);
    EXPECT_THAT(refused.err, HasSubstr(message));
  }
}

TEST(InspectTest, WhatDoesNotFitFails) {
  const Outcome outcome = Inspect({"mixtral-8x7b", "--memory=24GiB", "--context=100"});
  EXPECT_EQ(outcome.status, 1);
  EXPECT_THAT(outcome.out, HasSubstr("does not fit"));
}

TEST(InspectTest, WrongArgumentsAreRefused) {
  EXPECT_EQ(Inspect({}).status, 2);
  const Outcome unknown = Inspect({"no-such-model"});
  EXPECT_EQ(unknown.status, 2);
  EXPECT_THAT(unknown.err, AllOf(HasSubstr("no-such-model"), HasSubstr("olmoe-1b-7b")));
  EXPECT_EQ(Inspect({"olmoe-1b-7b", "--memory=lots"}).status, 2);
  EXPECT_EQ(Inspect({"olmoe-1b-7b", "--batch=0"}).status, 2);
  EXPECT_EQ(Inspect({"--help"}).status, 0);
}

}  // namespace
}  // namespace lynx::cli
