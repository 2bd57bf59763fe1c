// Whatever number stands in config.json, of any family: a spec that holds together, or an error
// that names file, key and value.

#include "common/model/model_config.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/model/model_spec.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/spec_invariants.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_dir.h"

namespace lynx::model {
namespace {

using ::lynx::testing::BrokenInvariant;
using ::lynx::testing::IsOk;
using ::lynx::testing::StatusIs;
using ::lynx::testing::TempDir;
using ::nlohmann::json;
using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

const std::filesystem::path kFixtures = "tests/golden/variants";

json Fixture(const std::string& name) {
  std::ifstream file(kFixtures / name / "config.json");
  return json::parse(file);
}

std::vector<std::string> Fixtures() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(kFixtures)) {
    if (entry.is_directory()) names.push_back(entry.path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

absl::StatusOr<ModelSpec> Parse(const json& config) { return ParseModelSpec(config, "a.json"); }

json Changed(const std::string& fixture, const json& changes) {
  json config = Fixture(fixture);
  config.update(changes);
  return config;
}

const std::vector<json>& OddValues() {
  static const std::vector<json> values = {
      json(nullptr),
      json(0),
      json(-1),
      json(1),
      json(2),
      json(3),
      json(7),
      json(1.5),
      json(-0.5),
      json(1e-300),
      json(1e30),
      json(1e300),
      json(1 << 24),
      json((1 << 24) + 1),
      json(int64_t{1} << 40),
      json(std::numeric_limits<int64_t>::min()),
      json(std::numeric_limits<int64_t>::max()),
      json(std::numeric_limits<uint64_t>::max()),
      json("7"),
      json(""),
      json(true),
      json(false),
      json::array(),
      json::array({1}),
      json::array({-1, 1.5}),
      json::object(),
  };
  return values;
}

// Calls `visit` with each value of `document`, in objects in it too, replaced by each odd one.
void ForEachOddity(const json& document, const std::string& path,
                   const std::function<void(const json& changed, const std::string& what)>& visit) {
  for (const auto& [key, value] : document.items()) {
    const std::string here = path.empty() ? key : path + "." + key;
    if (value.is_object()) {
      ForEachOddity(value, here, [&, key = key](const json& inner, const std::string& what) {
        json changed = document;
        changed[key] = inner;
        visit(changed, what);
      });
    }
    for (const json& odd : OddValues()) {
      json changed = document;
      changed[key] = odd;
      visit(changed, here + " = " + odd.dump());
    }
    if (value.is_array() && !value.empty()) {
      for (const json& odd : OddValues()) {
        json changed = document;
        changed[key][0] = odd;
        visit(changed, here + "[0] = " + odd.dump());
      }
    }
  }
}

class FixtureTest : public ::testing::TestWithParam<std::string> {};

TEST_P(FixtureTest, AnyValueOfAnyKeyIsReadSoundlyOrRefusedByName) {
  const json config = Fixture(GetParam());
  ASSERT_THAT(Parse(config), IsOk());
  ForEachOddity(config, "", [](const json& changed, const std::string& what) {
    const absl::StatusOr<ModelSpec> spec = Parse(changed);
    if (spec.ok()) {
      ASSERT_EQ(BrokenInvariant(*spec), "") << what;
      return;
    }
    ASSERT_TRUE(spec.status().code() == kInvalid ||
                spec.status().code() == absl::StatusCode::kUnimplemented)
        << what << ": " << spec.status();
    ASSERT_THAT(std::string(spec.status().message()),
                AllOf(HasSubstr("a.json"), AnyOf(HasSubstr("'"), HasSubstr("RoPE: "))))
        << what;
  });
}

// Those that count or measure something and that every family must have sound.
TEST_P(FixtureTest, ASizeThatIsNoneIsRefusedByFileKeyAndValue) {
  static const std::set<std::string> kSizes = {"vocab_size",
                                               "hidden_size",
                                               "num_hidden_layers",
                                               "head_dim",
                                               "num_attention_heads",
                                               "num_key_value_heads",
                                               "kv_lora_rank",
                                               "qk_nope_head_dim",
                                               "max_position_embeddings",
                                               "v_head_dim",
                                               "qk_rope_head_dim",
                                               "num_experts_per_tok",
                                               "moe_intermediate_size",
                                               "decoder_sparse_step",
                                               "moe_layer_freq",
                                               "topk_group",
                                               "interleave_moe_layer_step",
                                               "no_rope_layer_interval"};
  // Beside a list or a method that makes them so, or latents.
  std::set<std::string> may_be_idle = {"interleave_moe_layer_step", "topk_group",
                                       "no_rope_layer_interval"};
  json config = Fixture(GetParam());
  const bool wrapped = config.contains("text_config");
  json& text = wrapped ? config["text_config"] : config;
  const json sound = text;
  if (sound.contains("kv_lora_rank")) may_be_idle.insert({"head_dim", "num_key_value_heads"});
  for (const auto& [key, value] : sound.items()) {
    if (kSizes.count(key) == 0 || value.is_null()) continue;
    for (const json& bad :
         {json(0), json(-1), json(1.5), json((1 << 24) + 1), json(1e30), json("7"), json(true),
          json::array({1}), json(std::numeric_limits<uint64_t>::max())}) {
      text = sound;
      text[key] = bad;
      const absl::StatusOr<ModelSpec> spec = Parse(config);
      if (may_be_idle.count(key) > 0 && spec.ok()) continue;
      EXPECT_THAT(spec, StatusIs(kInvalid, AllOf(HasSubstr("a.json"), HasSubstr("'" + key + "'"),
                                                 HasSubstr("it is " + bad.dump()))))
          << key << " = " << bad;
    }
  }
}

// The same of numbers that need not be whole.
TEST_P(FixtureTest, AFactorThatIsNoneIsRefusedByFileKeyAndValue) {
  static const std::set<std::string> kFactors = {
      "rms_norm_eps",         "embedding_multiplier", "attention_multiplier",  "logits_scaling",
      "residual_multiplier",  "swiglu_limit",         "routed_scaling_factor", "clip_qkv",
      "partial_rotary_factor"};
  const json config = Fixture(GetParam());
  for (const auto& [key, value] : config.items()) {
    if (kFactors.count(key) == 0 || value.is_null()) continue;
    for (const json& bad : {json(0), json(-1.5), json(1e-300), json(1e300), json("1"), json(true),
                            json::array({1}), json::object()}) {
      json changed = config;
      changed[key] = bad;
      EXPECT_THAT(Parse(changed),
                  StatusIs(kInvalid, AllOf(HasSubstr("a.json"), HasSubstr("'" + key + "'"),
                                           HasSubstr("it is " + bad.dump()))))
          << key << " = " << bad;
    }
  }
}

TEST_P(FixtureTest, AModelOfExpertsSaysHowMany) {
  json config = Fixture(GetParam());
  json& text = config.contains("text_config") ? config["text_config"] : config;
  const auto spec = Parse(config);
  ASSERT_THAT(spec, IsOk());
  if (!spec->has_moe()) return;
  const char* key = "";
  for (const char* name : {"num_experts", "num_local_experts", "n_routed_experts"}) {
    if (text.contains(name)) key = name;
  }
  for (const json& none : {json(nullptr), json(0)}) {
    text[key] = none;
    const absl::StatusOr<ModelSpec> dense = Parse(config);
    if (dense.ok()) {  // Families that have dense layers, too.
      EXPECT_FALSE(dense->has_moe());
      EXPECT_EQ(BrokenInvariant(*dense), "");
    } else {
      EXPECT_THAT(dense, StatusIs(kInvalid, AllOf(HasSubstr("a.json"), HasSubstr(key))));
    }
  }
  for (const json& bad : {json(-1), json(1.5), json("8"), json(int64_t{1} << 40), json(1 << 24)}) {
    text[key] = bad;
    EXPECT_THAT(Parse(config), StatusIs(kInvalid, AllOf(HasSubstr("a.json"), HasSubstr(key),
                                                        HasSubstr(bad.dump()))));
  }
}

// All that a key may change unseen by the shapes of tensors.
std::string Described(const ModelSpec& spec) {
  std::string text =
      absl::StrCat(spec.rms_norm_epsilon, " ", spec.rope_theta, " ", spec.rotary_dim, " ",
                   spec.attention_scale, " ", spec.query_growth, " ", spec.query_growth_floor, " ",
                   spec.clip_qkv, " ", spec.embedding_multiplier, " ", spec.residual_multiplier,
                   " ", spec.logits_multiplier, " ", spec.expert_clamp, " ", spec.max_positions);
  for (const bool flag : {spec.qkv_bias, spec.output_bias, spec.sinks, spec.tied_embeddings,
                          spec.router_bias, spec.expert_bias, spec.ranking_bias, spec.shared_gate,
                          spec.neighbour_rope, spec.gate.scales_input}) {
    absl::StrAppend(&text, " ", flag);
  }
  const kernels::RopeScaling& rope = spec.rope_scaling;
  absl::StrAppend(&text, "\nrope ", static_cast<int>(rope.kind), " ", rope.factor, " ",
                  rope.original_positions, " ", rope.low_freq_factor, " ", rope.high_freq_factor,
                  " ");
  absl::StrAppend(&text, rope.beta_fast, " ", rope.beta_slow, " ", rope.mscale, " ",
                  rope.mscale_all_dim, " ", rope.attention_factor, " ", rope.truncate);
  absl::StrAppend(&text, "\ngate ", static_cast<int>(spec.gate.score), " ",
                  static_cast<int>(spec.gate.rule), " ", spec.gate.scale, " ", spec.gate.groups,
                  " ", spec.gate.groups_kept, " ", static_cast<int>(spec.gate.group_score));
  absl::StrAppend(&text, "\nwidths ", spec.dense_intermediate_size, " ", spec.experts, " ",
                  spec.experts_per_token, " ", spec.expert_intermediate_size, " ",
                  spec.shared_intermediate_size, " ", static_cast<int>(spec.query_key_norm));
  absl::StrAppend(&text, "\nlayers");
  for (size_t i = 0; i < spec.attention.size(); ++i) {
    absl::StrAppend(&text, " ", static_cast<int>(spec.feed_forward[i]), spec.attention[i].rope, "/",
                    spec.attention[i].reach.window, "/", spec.attention[i].reach.chunk);
  }
  return text;
}

// transformers reads a config without the key as one with its default: so must we, or refuse it.
TEST_P(FixtureTest, AnAbsentKeyIsWhatTransformersTakeItFor) {
  // Of another size tensors would have other shapes, or other names.
  static const std::set<std::string> kSeenInTensors = {
      "num_key_value_heads", "head_dim",         "num_experts",
      "num_local_experts",   "n_routed_experts", "q_lora_rank",
  };
  json config = Fixture(GetParam());
  json& text = config.contains("text_config") ? config["text_config"] : config;
  // As large as released models, whose defaults say what only later layers and many experts tell.
  text["num_hidden_layers"] = 60;
  for (const char* key : {"num_experts", "num_local_experts", "n_routed_experts"}) {
    if (text.contains(key)) text[key] = 264;  // Which many numbers of groups divide.
  }
  // What they list, layer by layer, follows from other keys then.
  for (const char* key : {"layer_types", "no_rope_layers", "moe_layers"}) text.erase(key);
  const json sound = text;
  ASSERT_THAT(Parse(config), IsOk());
  std::ifstream file("tests/golden/config_defaults.json");
  const json defaults = json::parse(file)[text["model_type"].get<std::string>()];
  ASSERT_FALSE(defaults.empty());
  int compared = 0;
  for (const auto& [key, value] : defaults.items()) {
    if (kSeenInTensors.count(key) > 0) continue;
    if (key == "eos_token_id") continue;  // Not in the small vocabularies here.
    text = sound;
    text.erase(key);
    const absl::StatusOr<ModelSpec> absent = Parse(config);
    text[key] = value;
    const absl::StatusOr<ModelSpec> given = Parse(config);
    if (!absent.ok()) continue;
    ++compared;
    ASSERT_THAT(given, IsOk()) << key << " = " << value;
    EXPECT_EQ(Described(*absent), Described(*given)) << key << " = " << value;
  }
  EXPECT_GT(compared, 5) << "most keys may be absent";
}

INSTANTIATE_TEST_SUITE_P(Families, FixtureTest, ::testing::ValuesIn(Fixtures()),
                         [](const ::testing::TestParamInfo<std::string>& fixture) {
                           std::string name = fixture.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

TEST(ModelConfigTest, FamiliesOfExpertsAloneRefuseNone) {
  for (const char* fixture : {"mixtral", "olmoe", "gpt-oss", "granitemoe", "granitemoeshared"}) {
    json config = Fixture(fixture);
    config.erase("num_experts");
    config.erase("num_local_experts");
    EXPECT_THAT(Parse(config),
                StatusIs(kInvalid, AllOf(HasSubstr("a.json"), HasSubstr("num_experts"),
                                         HasSubstr("num_local_experts"))))
        << fixture;
  }
}

TEST(ModelConfigTest, NoExpertsAreNamedByTheirKey) {
  for (const auto& [fixture, key] :
       {std::pair{"olmoe", "num_experts"}, {"mixtral", "num_local_experts"}}) {
    EXPECT_THAT(Parse(Changed(fixture, {{key, 0}})),
                StatusIs(kInvalid, AllOf(HasSubstr("a.json"), HasSubstr("it is 0"),
                                         HasSubstr(std::string("key '") + key + "' must be"))));
  }
}

TEST(ModelConfigTest, TensorsAreOfABoundedNumber) {
  EXPECT_THAT(Parse(Changed("mixtral", {{"num_local_experts", 1 << 16}})), IsOk());
  EXPECT_THAT(Parse(Changed("mixtral", {{"num_local_experts", 100'000}})),
              StatusIs(kInvalid, AllOf(HasSubstr("'num_local_experts'"), HasSubstr("100000"))));
  EXPECT_THAT(
      Parse(Changed("mixtral", {{"num_hidden_layers", 10'000}, {"num_local_experts", 100}})),
      StatusIs(kInvalid, HasSubstr("'num_local_experts'")));
  EXPECT_THAT(Parse(Changed("qwen3", {{"num_hidden_layers", 10'001}, {"layer_types", nullptr}})),
              StatusIs(kInvalid, AllOf(HasSubstr("'num_hidden_layers'"), HasSubstr("10001"))));
  // Even the largest weights have a size.
  const auto huge = Parse(Changed(
      "mixtral",
      {{"num_local_experts", 1 << 16}, {"intermediate_size", 1 << 24}, {"hidden_size", 1 << 18}}));
  ASSERT_THAT(huge, IsOk());
  EXPECT_EQ(BrokenInvariant(*huge), "");
  for (const auto& [key, size] :
       {std::pair{"hidden_size", (1 << 18) + 2}, {"num_attention_heads", 1 << 15}}) {
    EXPECT_THAT(Parse(Changed("mixtral", {{key, size}})),
                StatusIs(kInvalid, AllOf(HasSubstr(key), HasSubstr(std::to_string(size)))));
  }
}

TEST(ModelConfigTest, WhatContradictsItselfIsNamed) {
  for (const auto& [fixture, changes, key] :
       {std::tuple{"mixtral", json{{"num_experts", 4}}, "num_experts"},
        {"mixtral", json{{"num_experts_per_tok", 6}}, "num_experts_per_tok"},
        {"mixtral", json{{"num_key_value_heads", 3}}, "num_key_value_heads"},
        {"mixtral", json{{"num_key_value_heads", 8}}, "num_key_value_heads"},
        {"mixtral", json{{"head_dim", 9}}, "head_dim"},
        {"mixtral", json{{"head_dim", nullptr}, {"hidden_size", 38}}, "head_dim"},
        {"deepseek-v3", json{{"n_group", 5}}, "n_group"},
        {"deepseek-v3", json{{"n_group", 2}, {"topk_group", 3}}, "topk_group"},
        {"gpt-oss", json{{"layer_types", {"full_attention"}}}, "layer_types"},
        {"gpt-oss", json{{"sliding_window", 0}}, "sliding_window"},
        {"gpt-oss", json{{"sliding_window", -8}}, "sliding_window"},
        {"llama4-text", json{{"no_rope_layers", {1, 1, 1}}}, "no_rope_layers"},
        {"llama4-text", json{{"no_rope_layers", {1, 2}}}, "no_rope_layers"},
        {"llama4-text", json{{"attn_temperature_tuning", "on"}}, "attn_temperature_tuning"},
        {"llama4-text", json{{"attn_temperature_tuning", -4}}, "attn_temperature_tuning"},
        {"glm4-moe", json{{"partial_rotary_factor", 1.5}, {"rope_parameters", nullptr}},
         "partial_rotary_factor"},
        {"glm4-moe", json{{"rope_parameters", {{"partial_rotary_factor", 1e18}}}},
         "partial_rotary_factor"},
        {"olmoe", json{{"eos_token_id", 97}}, "eos_token_id"},
        {"olmoe", json{{"eos_token_id", {1, 97}}}, "eos_token_id"},
        {"olmoe", json{{"eos_token_id", -1}}, "eos_token_id"},
        {"olmoe", json{{"rope_parameters", {{"rope_theta", -1}}}}, "rope_theta"},
        {"olmoe", json{{"rope_parameters", {{"rope_type", "linear"}, {"factor", 0}}}}, "factor"},
        {"olmoe", json{{"rope_parameters", {{"rope_type", "linear"}, {"factor", 1e300}}}},
         "factor"},
        {"olmoe", json{{"rope_scaling", {{"type", "linear"}, {"factor", 4}}}}, "rope_scaling"},
        {"olmoe", json{{"rope_scaling", {{"rope_theta", 7}}}}, "rope_scaling"},
        {"qwen3-yarn", json{{"original_max_position_embeddings", 16}},
         "original_max_position_embeddings"},
        {"qwen3-yarn",
         json{{"rope_parameters", {{"rope_type", "yarn"}, {"factor", 2}, {"attention_factor", 0}}}},
         "attention_factor"},
        {"mistral", json{{"layer_types", {"sliding_attention", "full_attention"}}}, "layer_types"},
        {"olmoe", json{{"rope_parameters", 7}}, "rope_parameters"}}) {
    EXPECT_THAT(Parse(Changed(fixture, changes)),
                StatusIs(kInvalid, AllOf(HasSubstr("a.json"), HasSubstr(key))))
        << fixture << " " << changes;
  }
}

TEST(ModelConfigTest, RopeOfOneMeaningMayBeSaidTwice) {
  const json yarn = Fixture("qwen3-yarn")["rope_parameters"];
  const std::string once = Described(*Parse(Fixture("qwen3-yarn")));
  for (const json& again : {json{{"rope_scaling", yarn}}, json{{"rope_scaling", json::object()}},
                            json{{"original_max_position_embeddings", 32}}}) {
    const auto twice = Parse(Changed("qwen3-yarn", again));
    ASSERT_THAT(twice, IsOk()) << again;
    EXPECT_EQ(Described(*twice), once) << again;
  }
  // Beside the object, where it has none.
  json config = Fixture("qwen3-yarn");
  config["rope_parameters"].erase("original_max_position_embeddings");
  config["original_max_position_embeddings"] = 32;
  EXPECT_EQ(Described(*Parse(config)), once);
}

// gpt-oss without a word on RoPE is stretched; with an empty `rope_parameters` it is not.
TEST(ModelConfigTest, GptOssIsStretchedUnlessItSaysOtherwise) {
  json config = Fixture("gpt-oss");
  for (const char* key : {"rope_parameters", "rope_scaling"}) config.erase(key);
  for (const json& none : {json(nullptr), json::object()}) {
    config["rope_scaling"] = none;
    const auto spec = Parse(config);
    ASSERT_THAT(spec, IsOk());
    EXPECT_EQ(spec->rope_scaling.kind, kernels::RopeScalingKind::kYarn);
    EXPECT_EQ(spec->rope_scaling.factor, 32);
    EXPECT_EQ(spec->rope_scaling.original_positions, 4096);
    EXPECT_FALSE(spec->rope_scaling.truncate);
  }
  config["rope_parameters"] = json::object();
  EXPECT_EQ(Parse(config)->rope_scaling.kind, kernels::RopeScalingKind::kNone);
  EXPECT_THAT(Parse(Changed("gpt-oss", {{"swiglu_alpha", 1.0}})),
              StatusIs(absl::StatusCode::kUnimplemented, HasSubstr("'swiglu_alpha'")));
}

// As transformers do, whatever the key says; the log says so.
TEST(ModelConfigTest, WeightsOfDeepseekV2AreScaledAndNeverRenormalised) {
  const auto spec = Parse(Changed("deepseek-v2", {{"norm_topk_prob", true}}));
  ASSERT_THAT(spec, IsOk());
  EXPECT_EQ(spec->gate.rule, moe::Gate::Rule::kKeepMass);
  EXPECT_FLOAT_EQ(spec->gate.scale, 1.6f);
  EXPECT_THAT(spec->notes, ElementsAre(HasSubstr("norm_topk_prob")));
}

TEST(ModelConfigTest, ListedTypesOfLayersDecideWhatLayersReach) {
  const auto mistral =
      Parse(Changed("mistral-window", {{"layer_types", {"sliding_attention", "full_attention"}}}));
  ASSERT_THAT(mistral, IsOk());
  EXPECT_EQ(mistral->attention[0].reach.window, 11);
  EXPECT_EQ(mistral->attention[1].reach.window, 0);
  // Beside those that rotate.
  const auto llama4 =
      Parse(Changed("llama4-text", {{"layer_types", {"chunked_attention", "full_attention"}}}));
  ASSERT_THAT(llama4, IsOk());
  EXPECT_FALSE(llama4->attention[0].rope);
  EXPECT_EQ(llama4->attention[0].reach.chunk, 8192);
  EXPECT_TRUE(llama4->attention[1].rope);
  EXPECT_EQ(llama4->attention[1].reach.chunk, 0);
}

// The file that has the id is the one to be mended.
TEST(ModelConfigTest, IdsOutsideTheVocabularyAreNamedInTheirFile) {
  TempDir dir;
  dir.Write("config.json", Fixture("olmoe").dump());
  dir.Write("generation_config.json", R"({"eos_token_id": [3, 97]})");
  EXPECT_THAT(LoadModelSpec(dir.path()),
              StatusIs(kInvalid, AllOf(HasSubstr("generation_config.json"),
                                       HasSubstr("'eos_token_id'"), HasSubstr("97"))));
}

TEST(ModelConfigTest, AWrappedTextModelIsReadWhole) {
  json config = Fixture("llama4");
  EXPECT_THAT(Parse(config)->eos_token_ids, ElementsAre(96));
  config["eos_token_id"] = {3};
  EXPECT_THAT(Parse(config)->eos_token_ids, ElementsAre(3, 96));
  config["text_config"]["eos_token_id"] = 97;
  EXPECT_THAT(Parse(config), StatusIs(kInvalid, AllOf(HasSubstr("text_config"), HasSubstr("97"))));
}

// LOAD-1: the text part's own flag decides; one beside it counts where the part has none.
TEST(ModelConfigTest, AWrappedTextModelIsTiedAsItsPartSays) {
  const auto tied = [](const json& outer, const json& inner) {
    json config = Fixture("llama4");
    config["tie_word_embeddings"] = outer;
    config["text_config"]["tie_word_embeddings"] = inner;
    return *Parse(config);
  };
  EXPECT_TRUE(tied(nullptr, true).tied_embeddings);
  EXPECT_FALSE(tied(nullptr, false).tied_embeddings);
  EXPECT_FALSE(tied(nullptr, nullptr).tied_embeddings);
  EXPECT_TRUE(tied(true, nullptr).tied_embeddings);
  EXPECT_THAT(tied(true, true).notes, ElementsAre());
  const ModelSpec contradictory = tied(true, false);
  EXPECT_FALSE(contradictory.tied_embeddings);
  EXPECT_THAT(contradictory.notes,
              ElementsAre(AllOf(HasSubstr("tie_word_embeddings"), HasSubstr("text_config"))));
}

TEST(ModelConfigTest, AValueIsShownShortAndPrintable) {
  const auto text = [](const json& value) {
    return std::string(Parse(Changed("olmoe", {{"vocab_size", value}})).status().message());
  };
  EXPECT_THAT(text(json::array({1, 2})), HasSubstr("[1,2]"));
  EXPECT_THAT(text("line\nbreak \u00e9"), AllOf(HasSubstr("\\n"), HasSubstr("\\u00e9")));
  EXPECT_LT(text(std::string(100'000, 'x')).size(), 300u);
}

}  // namespace
}  // namespace lynx::model
