#include "services/cli/bench/model_shape.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_dir.h"

namespace lynx::cli {
namespace {

using ::lynx::testing::IsOk;
using ::lynx::testing::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

// Billions of parameters, all and those that one token goes through.
struct Published {
  double total;
  double active;
};

double ActiveParameters(const model::ModelSpec& spec) {
  const int64_t idle = int64_t{spec.experts - spec.experts_per_token} * ExpertParameters(spec);
  const auto moe_layers =
      std::count(spec.feed_forward.begin(), spec.feed_forward.end(), model::FeedForwardKind::kMoe);
  return static_cast<double>(MatrixParameters(spec) - moe_layers * idle) / 1e9;
}

void ExpectParameters(const std::string& name, const Published& published) {
  const auto shape = LoadModelShape(name);
  ASSERT_THAT(shape, IsOk());
  EXPECT_NEAR(static_cast<double>(MatrixParameters(shape->spec)) / 1e9, published.total, 0.01)
      << name;
  EXPECT_NEAR(ActiveParameters(shape->spec), published.active, 0.05) << name;
}

TEST(ModelShapeTest, ShapesHaveThePublishedNumberOfParameters) {
  ExpectParameters("olmoe-1b-7b", {.total = 6.92, .active = 1.28});
  ExpectParameters("qwen3-30b-a3b", {.total = 30.53, .active = 3.35});
  ExpectParameters("mixtral-8x7b", {.total = 46.70, .active = 12.88});
  ExpectParameters("qwen2-57b-a14b", {.total = 57.41, .active = 14.25});
  ExpectParameters("deepseek-v2-lite", {.total = 15.71, .active = 2.66});
}

TEST(ModelShapeTest, GatesAreThoseOfTheModels) {
  EXPECT_EQ(LoadModelShape("olmoe-1b-7b")->spec.gate.rule, moe::Gate::Rule::kKeepMass);
  EXPECT_EQ(LoadModelShape("mixtral-8x7b")->spec.gate.rule, moe::Gate::Rule::kRenormalise);
  EXPECT_EQ(LoadModelShape("deepseek-v2-lite")->spec.gate.rule, moe::Gate::Rule::kKeepMass);
}

TEST(ModelShapeTest, EveryNameIsKnown) {
  for (const std::string& name : ShapeNames()) {
    EXPECT_THAT(LoadModelShape(name), Not(StatusIs(absl::StatusCode::kNotFound)));
  }
  EXPECT_THAT(
      LoadModelShape("olmo"),
      StatusIs(absl::StatusCode::kNotFound, AllOf(HasSubstr("'olmo'"), HasSubstr("olmoe-1b-7b"))));
}

TEST(ModelShapeTest, ConfigsOfFilesAreRead) {
  const auto shape = LoadModelShape("models/lynx-tiny-moe/config.json");
  ASSERT_THAT(shape, IsOk());
  EXPECT_EQ(shape->spec.layers, 4);
  testing::TempDir dir;
  dir.Write("c.json", R"({"model_type":"gpt2"})");
  EXPECT_THAT(
      LoadModelShape((dir.path() / "c.json").string()),
      StatusIs(absl::StatusCode::kUnimplemented, AllOf(HasSubstr("c.json"), HasSubstr("gpt2"))));
  dir.Write("c.json", R"({"model_type":"mixtral"})");
  EXPECT_THAT(LoadModelShape((dir.path() / "c.json").string()),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("vocab_size")));
  dir.Write("c.json", "[]");
  EXPECT_THAT(LoadModelShape((dir.path() / "c.json").string()),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("not a JSON object")));
}

TEST(ModelShapeTest, QuantisedExpertsAreMeasuredAsTheyArePacked) {
  const auto shape = LoadModelShape("tests/golden/variants/gpt-oss-mxfp4/config.json");
  ASSERT_THAT(shape, IsOk());
  EXPECT_FALSE(shape->spec.mxfp4_experts);
}

// Each of its sizes is allowed.
TEST(ModelShapeTest, AModelBeyondAllMemoryIsRefused) {
  const nlohmann::json config = {{"model_type", "olmoe"},         {"vocab_size", 100},
                                 {"hidden_size", 1 << 18},        {"num_hidden_layers", 2},
                                 {"num_attention_heads", 4},      {"head_dim", 64},
                                 {"max_position_embeddings", 64}, {"num_experts", 1 << 16},
                                 {"num_experts_per_tok", 2},      {"intermediate_size", 1 << 18}};
  EXPECT_THAT(ShapeOfConfig(config, "huge"),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("huge: a model of 2.7e+16")));
}

TEST(ModelShapeTest, FewerLayersKeepTheirKinds) {
  auto shape = LoadModelShape("qwen3-30b-a3b");
  ASSERT_THAT(shape, IsOk());
  const int64_t layer = LayerParameters(shape->spec, 0);
  const int64_t all = MatrixParameters(shape->spec);
  KeepLayers(2, shape->spec);
  EXPECT_EQ(shape->spec.feed_forward.size(), 2u);
  EXPECT_EQ(MatrixParameters(shape->spec), all - 46 * layer);
}

}  // namespace
}  // namespace lynx::cli
