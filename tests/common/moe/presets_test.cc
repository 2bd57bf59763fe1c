#include "common/moe/presets.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lynx::moe {
namespace {

using ::testing::HasSubstr;

TEST(PresetsTest, PublishedModelsHaveTheirPair) {
  const struct {
    ModelFacts facts;
    double alpha;
    int32_t beta;
  } cases[] = {
      {{.model_type = "qwen2_moe", .experts = 64, .top_k = 8}, 3, 4},
      {{.model_type = "qwen3_moe", .experts = 128, .top_k = 8, .hidden_size = 2048}, 3, 2},
      {{.model_type = "qwen3_moe",
        .name = "Qwen3-235B-A22B-Instruct-2507",
        .experts = 128,
        .top_k = 8,
        .hidden_size = 4096},
       3,
       2},
      {{.model_type = "qwen3_moe",
        .name = "Qwen/Qwen3-235B-A22B-Thinking-2507",
        .experts = 128,
        .top_k = 8,
        .hidden_size = 4096},
       1,
       2},
      {{.model_type = "mixtral", .experts = 8, .top_k = 2, .hidden_size = 4096}, 0.7, 1},
      {{.model_type = "mixtral", .experts = 8, .top_k = 2, .hidden_size = 6144}, 1, 1},
      {{.model_type = "deepseek_v2", .experts = 160, .top_k = 6}, 1, 2},
      {{.model_type = "gpt_oss", .experts = 128, .top_k = 4}, 3, 2},
  };
  for (const auto& test : cases) {
    const Preset preset = PresetFor(test.facts);
    EXPECT_EQ(preset.alpha, test.alpha) << preset.source;
    EXPECT_EQ(preset.beta, test.beta) << preset.source;
    EXPECT_EQ(preset.floor, 1);
    EXPECT_THAT(preset.source, HasSubstr("published for"));
  }
}

TEST(PresetsTest, OtherModelsHaveTheDocumentedDefault) {
  const struct {
    int32_t experts;
    int32_t top_k;
    int32_t beta;
  } cases[] = {{64, 8, 4}, {128, 8, 3}, {256, 8, 3}, {60, 4, 4}, {8, 2, 4}, {512, 1, 3}, {0, 0, 2}};
  for (const auto& test : cases) {
    const Preset preset =
        PresetFor({.model_type = "new_moe", .experts = test.experts, .top_k = test.top_k});
    EXPECT_EQ(preset.alpha, 3);
    EXPECT_EQ(preset.beta, test.beta) << test.experts << ", " << test.top_k;
    EXPECT_THAT(preset.source, HasSubstr("default"));
  }
}

constexpr ModelFacts kFacts{.model_type = "new_moe", .experts = 64, .top_k = 7};

TEST(PresetsTest, FillsWhatIsUnsetOnly) {
  const auto filled = [](const char* text) {
    return ToString(WithPreset(*ParsePolicy(text), kFacts));
  };
  EXPECT_EQ(filled("lynx"), "lynx:alpha=3,beta=4,floor=1");
  EXPECT_EQ(filled("lynx:floor=0"), "lynx:alpha=3,beta=4,floor=0");
  EXPECT_EQ(filled("lynx:alpha=1"), "lynx:alpha=1,beta=4,floor=0");
  EXPECT_EQ(filled("lynx:beta=none"), "lynx:alpha=3,beta=none,floor=0");
  EXPECT_EQ(filled("lynx_compat"), "lynx_compat:alpha=3,beta=4");
  EXPECT_EQ(filled("lynx:self_scaled=true"), "lynx:alpha=4,beta=3,floor=1,self_scaled=true");
  EXPECT_EQ(filled("oea"), "oea:k0=4");
  EXPECT_EQ(filled("oea:k0=2"), "oea:k0=2");
  EXPECT_EQ(filled("exact"), "exact");
  EXPECT_EQ(filled("auto"), "auto");
  for (const char* text : {"lynx", "lynx_compat", "oea", "vote:M=9", "marginal:lambda=1"}) {
    EXPECT_TRUE(CheckPolicy(WithPreset(*ParsePolicy(text), kFacts), 64, 7).ok()) << text;
  }
}

TEST(PresetsTest, TopOneInputScalingRoutersAreLeftAloneUnlessParametersAreGiven) {
  const ModelFacts llama{
      .model_type = "llama4_text", .experts = 16, .top_k = 1, .scales_input = true};
  EXPECT_TRUE(PresetFor(llama).off_unless_given);
  EXPECT_THAT(PresetFor(llama).source, HasSubstr("off unless parameters are given"));
  EXPECT_EQ(WithPreset(*ParsePolicy("lynx"), llama), Policy{});
  EXPECT_EQ(WithPreset(*ParsePolicy("oea"), llama), Policy{});
  EXPECT_EQ(ToString(WithPreset(*ParsePolicy("lynx:alpha=1"), llama)),
            "lynx:alpha=1,beta=none,floor=0");
}

}  // namespace
}  // namespace lynx::moe
