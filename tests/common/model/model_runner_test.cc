#include "common/model/model_runner.h"

#include <cmath>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/model/compatibility.h"
#include "common/model/memory_need.h"
#include "common/model/model_spec.h"
#include "common/model/model_weights.h"
#include "common/model/router_override.h"
#include "common/model/safetensors.h"
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
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::ElementsAreArray;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

const std::vector<TokenId> kTokens = {5, 17, 60, 0, 3, 3, 41, 8, 22, 9, 1, 2, 50, 33, 12, 7, 6, 19};
const std::vector<kv::BlockId> kBlocks = {3, 1};

RunnerOptions Options(const std::filesystem::path& dir) {
  return {.model_dir = dir,
          .compute_dtype = DType::kBf16,
          .kv_dtype = DType::kBf16,
          .kv_blocks = 4,
          .max_step_rows = 40,
          .max_step_logits = 40,
          .threads = 2};
}

std::vector<int32_t> ExpertCounts(const StepStats& stats) {
  std::vector<int32_t> counts;
  for (const moe::PlanStats& plan : stats.plans) counts.push_back(plan.experts);
  return counts;
}

absl::StatusOr<std::unique_ptr<ModelRunner>> Load(const TinyModel& model, int shards = 0) {
  TempDir dir;  // Once loaded, a runner needs no file.
  if (shards > 0) {
    model.WriteSharded(dir.path(), shards);
  } else {
    model.Write(dir.path());
  }
  return ModelRunner::Load(Options(dir.path()));
}

// Logits of every position of kTokens.
std::vector<float> LogitsOf(ModelRunner& runner) {
  const SequenceRows rows{
      .tokens = kTokens, .blocks = kBlocks, .logits_rows = static_cast<int32_t>(kTokens.size())};
  EXPECT_THAT(runner.Step({&rows, 1}, nullptr), IsOk());
  return {runner.logits().begin(), runner.logits().end()};
}

std::vector<float> LogitsOf(const TinyModel& model, int shards = 0) {
  auto runner = Load(model, shards);
  EXPECT_THAT(runner, IsOk());
  return LogitsOf(**runner);
}

// --- Forms of a model folder

TEST(ModelFolderTest, ShardsAndFusedExpertsChangeNoBit) {
  const std::vector<float> plain = LogitsOf(TinyModel::Make());
  EXPECT_EQ(plain.size(), kTokens.size() * 61);
  EXPECT_EQ(LogitsOf(TinyModel::Make(), /*shards=*/3), plain);
  EXPECT_EQ(LogitsOf(TinyModel::Make({.fused_experts = true})), plain);
}

// The same values stored wider are the same model. (With activations of bf16 they meet other
// instructions, where there are any for bf16.)
TEST(ModelFolderTest, WeightTypesChangeNoBit) {
  auto logits = [](DType dtype) {
    TempDir dir;
    TinyModel::Make({.dtype = dtype}).Write(dir.path());
    RunnerOptions options = Options(dir.path());
    options.compute_dtype = DType::kF32;
    auto runner = ModelRunner::Load(options);
    EXPECT_THAT(runner, IsOk());
    return LogitsOf(**runner);
  };
  EXPECT_EQ(logits(DType::kF32), logits(DType::kBf16));
  EXPECT_EQ(logits(DType::kF16), logits(DType::kBf16));
}

TEST(ModelFolderTest, DenseLayersMix) {
  auto runner = Load(TinyModel::Make({.dense_layers = {0}}));
  ASSERT_THAT(runner, IsOk());
  EXPECT_NE(LogitsOf(**runner), LogitsOf(TinyModel::Make()));
  EXPECT_EQ((*runner)->stats().plans[0].experts, 0);
  EXPECT_GT((*runner)->stats().plans[1].experts, 0);
  EXPECT_THAT(Load(TinyModel::Make({.dense_layers = {0, 1}})), IsOk());
}

TEST(ModelFolderTest, TheHeadIsTheOneTheConfigNames) {
  const std::vector<float> tied = LogitsOf(TinyModel::Make({.tied = true}));
  // Untied with a head of the embedding's values: the same answer.
  TinyModel copy = TinyModel::Make({.tied = false, .head = true});
  const std::vector<float> untied = LogitsOf(copy);
  copy.tensors["lm_head.weight"] = copy.tensors["model.embed_tokens.weight"];
  EXPECT_EQ(LogitsOf(copy), tied);
  EXPECT_NE(untied, tied);
  // Tied, and a head there all the same: not used, and said so.
  auto extra = Load(TinyModel::Make({.tied = true, .head = true}));
  ASSERT_THAT(extra, IsOk());
  EXPECT_EQ(LogitsOf(**extra), tied);
  EXPECT_THAT((*extra)->spec().notes, ElementsAre(HasSubstr("lm_head.weight")));
  // Untied without a head: refused. The flag absent means untied in this family.
  EXPECT_THAT(Load(TinyModel::Make({.tied = false, .head = false})),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("lm_head.weight")));
  TinyModel unsaid = TinyModel::Make({.tied = true, .head = true});
  unsaid.config.erase("tie_word_embeddings");
  EXPECT_EQ(LogitsOf(unsaid), untied);
}

TEST(ModelFolderTest, TensorsThatDisagreeWithTheConfigAreNamed) {
  TinyModel missing = TinyModel::Make();
  missing.tensors.erase("model.layers.1.mlp.experts.2.up_proj.weight");
  missing.tensors.erase("model.layers.0.self_attn.k_norm.weight");
  EXPECT_THAT(Load(missing), StatusIs(absl::StatusCode::kNotFound,
                                      AllOf(HasSubstr("layers.1.mlp.experts.2.up_proj.weight"),
                                            HasSubstr("layers.0.self_attn.k_norm.weight"))));
  TinyModel misshapen = TinyModel::Make();
  misshapen.config["head_dim"] = 8;
  EXPECT_THAT(Load(misshapen), StatusIs(absl::StatusCode::kInvalidArgument,
                                        AllOf(HasSubstr("q_proj.weight is [24, 24]"),
                                              HasSubstr("wanted [32, 24]"))));
  // Scales of a quantised model, say: dropping them in silence would give nonsense.
  TinyModel extra = TinyModel::Make();
  extra.tensors["model.layers.0.self_attn.q_proj.weight_scale_inv"] = {DType::kF32, {1}, {1.0f}};
  EXPECT_THAT(Load(extra),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("weight_scale_inv")));
}

TEST(ModelFolderTest, OptionsOutOfRangeAreRefused) {
  TempDir dir;
  TinyModel::Make().Write(dir.path());
  const RunnerOptions good = Options(dir.path());
  EXPECT_THAT(ModelRunner::Load(good), IsOk());
  auto refused = [&](auto change, const char* name) {
    RunnerOptions bad = good;
    change(bad);
    EXPECT_THAT(ModelRunner::Load(bad),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(name)));
  };
  refused([](RunnerOptions& o) { o.kv_blocks = 0; }, "kv_blocks");
  refused([](RunnerOptions& o) { o.max_step_rows = -1; }, "max_step_rows");
  refused([](RunnerOptions& o) { o.max_step_logits = 0; }, "max_step_logits");
  refused([](RunnerOptions& o) { o.threads = -1; }, "threads");
  refused([](RunnerOptions& o) { o.compute_dtype = DType::kF16; }, "compute_dtype");
  refused([](RunnerOptions& o) { o.kv_dtype = DType::kF16; }, "kv_dtype");
  refused([](RunnerOptions& o) { o.cpus = {0}; }, "threads");  // Two threads.
  if (kernels::BestIsa() != kernels::Isa::kAmx) {
    refused([](RunnerOptions& o) { o.isa = kernels::Isa::kAmx; }, "isa is amx");
  }
}

TEST(ModelFolderTest, MemoryThatIsNotGrantedEndsTheLoad) {
  TempDir dir;
  TinyModel::Make().Write(dir.path());
  RunnerOptions options = Options(dir.path());
  MemoryNeed need;
  options.admit_memory = [&](const MemoryNeed& asked) {
    need = asked;
    return absl::ResourceExhaustedError("no");
  };
  options.load_progress = [](int64_t, int64_t) { FAIL() << "weights were read"; };
  EXPECT_THAT(ModelRunner::Load(options), StatusIs(absl::StatusCode::kResourceExhausted, "no"));
  EXPECT_GT(need.weights, 0);
  EXPECT_GT(need.kv, 0);
  EXPECT_GT(need.steps, 0);
}

// --- Identity

TEST(ModelIdentityTest, TheHashFollowsWhatDecidesAResult) {
  auto hash = [](const TinyModel& model, int shards = 0) {
    return (*Load(model, shards))->compatibility_hash();
  };
  const std::string plain = hash(TinyModel::Make());
  EXPECT_EQ(plain.size(), 64u);
  EXPECT_EQ(hash(TinyModel::Make()), plain);
  EXPECT_EQ(hash(TinyModel::Make(), /*shards=*/3), plain);
  TinyModel tuned = TinyModel::Make();
  for (auto& [name, tensor] : tuned.tensors) {
    for (float& v : tensor.values) v *= 1.01f;
  }
  EXPECT_NE(hash(tuned), plain);
  TinyModel theta = TinyModel::Make();
  theta.config["rope_theta"] = 10001.0;
  EXPECT_NE(hash(theta), plain);

  TempDir dir;
  TinyModel::Make().Write(dir.path());
  RunnerOptions options = Options(dir.path());
  options.kv_dtype = DType::kF32;
  EXPECT_NE((*ModelRunner::Load(options))->compatibility_hash(), plain);
  options = Options(dir.path());
  options.kv_blocks = 9;  // How much memory a node has is its own affair.
  options.threads = 1;
  EXPECT_EQ((*ModelRunner::Load(options))->compatibility_hash(), plain);
}

TEST(ModelIdentityTest, TheNumericClassNamesTheInstructionSet) {
  TempDir dir;
  TinyModel::Make().Write(dir.path());
  RunnerOptions options = Options(dir.path());
  const std::string best = (*ModelRunner::Load(options))->numeric_class();
  options.isa = kernels::BestIsa();
  EXPECT_EQ((*ModelRunner::Load(options))->numeric_class(), best);
  options.isa = kernels::Isa::kPortable;
  EXPECT_THAT((*ModelRunner::Load(options))->numeric_class(), HasSubstr("portable"));
}

TEST(ModelIdentityTest, TheNumericClassNamesTypesAndNotThreads) {
  TempDir dir;
  TinyModel::Make().Write(dir.path());
  RunnerOptions options = Options(dir.path());
  const std::string plain = (*ModelRunner::Load(options))->numeric_class();
  options.threads = 1;
  EXPECT_EQ((*ModelRunner::Load(options))->numeric_class(), plain);
  options.compute_dtype = DType::kF32;
  EXPECT_NE((*ModelRunner::Load(options))->numeric_class(), plain);
}

// --- Weights in memory

// The weights and spec of a folder, as a caller without a folder would bring them.
struct InMemory {
  static InMemory Of(const TinyModel& model) {
    TempDir dir;
    model.Write(dir.path());
    return {.spec = *LoadModelSpec(dir.path()), .folder = *SafetensorsFolder::Open(dir.path())};
  }
  absl::StatusOr<std::unique_ptr<ModelRunner>> Create(
      std::string_view identity = "tiny", RouterOverride* router_override = nullptr) const {
    RunnerOptions options = Options("");
    options.router_override = router_override;
    return ModelRunner::Create(options, spec, folder.tensors(), identity);
  }

  ModelSpec spec;
  SafetensorsFolder folder;
};

TEST(InMemoryModelTest, ComputesWhatItsFolderWouldAndHasItsOwnIdentity) {
  const InMemory model = InMemory::Of(TinyModel::Make());
  auto runner = model.Create();
  ASSERT_THAT(runner, IsOk());
  EXPECT_EQ(LogitsOf(**runner), LogitsOf(TinyModel::Make()));
  const std::string hash = (*runner)->compatibility_hash();
  EXPECT_EQ((*model.Create())->compatibility_hash(), hash);
  EXPECT_NE((*model.Create("other"))->compatibility_hash(), hash);
  EXPECT_NE((*Load(TinyModel::Make()))->compatibility_hash(), hash);
}

TEST(InMemoryModelTest, SpecsAndTensorsThatDoNotFitAreRefused) {
  auto refused = [](auto change, const char* what) {
    InMemory model = InMemory::Of(TinyModel::Make());
    change(model.spec);
    EXPECT_THAT(model.Create(), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(what)));
  };
  refused([](ModelSpec& spec) { spec.layers = 3; }, "every layer");
  refused([](ModelSpec& spec) { spec.head_dim = 7; }, "head_dim");
  refused([](ModelSpec& spec) { spec.kv_heads = 3; }, "kv_heads");
  refused([](ModelSpec& spec) { spec.experts_per_token = 5; }, "MoE");
  refused(
      [](ModelSpec& spec) {
        spec.feed_forward[0] = FeedForwardKind::kDense;
        spec.dense_intermediate_size = 0;
      },
      "dense");
  refused([](ModelSpec& spec) { spec.vocab_size = 0; }, "positive");
  refused([](ModelSpec& spec) { spec.vocab_size = 60; }, "embed_tokens");

  refused([](ModelSpec& spec) { spec.kv_lora_rank = 8; }, "latent");

  const InMemory model = InMemory::Of(TinyModel::Make());
  TensorMap tensors = model.folder.tensors();
  Tensor& cut = tensors["model.layers.1.mlp.experts.2.up_proj.weight"];
  cut.data = cut.data.first(cut.data.size() - 2);
  EXPECT_THAT(ModelRunner::Create(Options(""), model.spec, tensors, "cut"),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("experts.2.up_proj.weight [20, 24] has 958 bytes of 960")));
}

// The golden fixture of a quantised model, changed.
TEST(QuantisedModelTest, ScalesThatDoNotFitAreNamed) {
  const std::filesystem::path dir = "tests/golden/variants/deepseek-v3-fp8";
  const std::string name = "model.layers.1.mlp.experts.2.up_proj.weight";
  const std::string scales = name + "_scale_inv";
  const auto folder = SafetensorsFolder::Open(dir);
  ASSERT_THAT(folder, IsOk());
  ASSERT_EQ(folder->tensors().at(name).coding, Coding::kE4m3);
  auto create = [&](auto change) {
    TensorMap tensors = folder->tensors();
    ModelSpec spec = *LoadModelSpec(dir);
    change(tensors, spec);
    return ModelRunner::Create(Options(""), std::move(spec), tensors, "changed").status();
  };
  EXPECT_THAT(create([](TensorMap&, ModelSpec&) {}), IsOk());
  EXPECT_THAT(create([&](TensorMap& tensors, ModelSpec&) { tensors.erase(scales); }),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr(scales)));
  EXPECT_THAT(create([&](TensorMap& tensors, ModelSpec&) {
                tensors[scales].shape = {tensors[scales].shape[0] * tensors[scales].shape[1], 1};
              }),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(scales)));
  EXPECT_THAT(create([&](TensorMap& tensors, ModelSpec&) {
                Tensor& tensor = tensors[scales];
                tensor.dtype = DType::kBf16;
                tensor.data = tensor.data.first(tensor.data.size() / 2);
              }),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr(scales), HasSubstr("wanted f32"))));
  EXPECT_THAT(create([](TensorMap&, ModelSpec& spec) { spec.fp8_block_rows = 0; }),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("quantization_config")));
  EXPECT_THAT(create([](TensorMap& tensors, ModelSpec&) {
                Tensor& norm = tensors["model.norm.weight"];
                norm.coding = Coding::kE4m3;
                norm.data = norm.data.first(static_cast<size_t>(norm.shape[0]));
              }),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("model.norm.weight"), HasSubstr("f8_e4m3"))));
}

class Mxfp4ModelTest : public ::testing::Test {
 protected:
  static constexpr char kDir[] = "tests/golden/variants/gpt-oss-mxfp4";
  const std::string down_ = "model.layers.1.mlp.experts.down_proj";  // [4, 96, 64]
  const std::string gate_up_ = "model.layers.1.mlp.experts.gate_up_proj";

  void SetUp() override {
    auto folder = SafetensorsFolder::Open(kDir);
    ASSERT_THAT(folder, IsOk());
    folder_.emplace(*std::move(folder));
  }
  template <typename Change>
  absl::Status Create(Change change) {
    TensorMap tensors = folder_->tensors();
    ModelSpec spec = *LoadModelSpec(kDir);
    change(tensors, spec);
    return ModelRunner::Create(Options(""), std::move(spec), tensors, "changed").status();
  }
  Tensor Bf16(std::vector<int64_t> shape) {
    int64_t bytes = 2;
    for (int64_t extent : shape) bytes *= extent;
    zeros_.resize(static_cast<size_t>(bytes));
    return {.dtype = DType::kBf16, .shape = std::move(shape), .data = zeros_};
  }

  std::optional<SafetensorsFolder> folder_;
  std::vector<std::byte> zeros_;
};

TEST_F(Mxfp4ModelTest, TensorsThatAreMissingMisshapenOrOfAnotherTypeAreNamed) {
  EXPECT_THAT(Create([](TensorMap&, ModelSpec&) {}), IsOk());
  for (const char* part : {"_blocks", "_scales"}) {
    const std::string name = down_ + part;
    EXPECT_THAT(Create([&](TensorMap& tensors, ModelSpec&) { tensors.erase(name); }),
                StatusIs(absl::StatusCode::kNotFound, HasSubstr(name)));
    EXPECT_THAT(
        Create([&](TensorMap& tensors, ModelSpec&) {
          const std::vector<int64_t> shape = tensors[name].shape;
          tensors[name] = Bf16(shape);
        }),
        StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(name + " is bf16, wanted u8")));
  }
  // As it were with groups of 16.
  EXPECT_THAT(Create([&](TensorMap& tensors, ModelSpec&) {
                tensors[down_ + "_blocks"].shape = {4, 96, 4, 8};
              }),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("model.safetensors: " + down_ +
                                 "_blocks is [4, 96, 4, 8], wanted [4, 96, 2, 16]")));
  EXPECT_THAT(Create([&](TensorMap& tensors, ModelSpec&) {
                tensors[down_ + "_scales"].shape = {4, 96, 4};
              }),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("_scales is [4, 96, 4], wanted [4, 96, 2]")));
  EXPECT_THAT(
      Create([](TensorMap&, ModelSpec& spec) { spec.expert_intermediate_size = 65; }),
      StatusIs(absl::StatusCode::kInvalidArgument,
               HasSubstr(down_ + "_blocks would have rows of 65, and blocks of 32 do not")));
  EXPECT_THAT(Create([](TensorMap& tensors, ModelSpec&) {
                Tensor& norm = tensors["model.norm.weight"];
                norm.coding = Coding::kBytes;
                norm.data = norm.data.first(static_cast<size_t>(norm.shape[0]));
              }),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("model.norm.weight is u8, wanted f32, bf16 or f16")));
  EXPECT_THAT(Create([](TensorMap& tensors, ModelSpec&) {
                Tensor& head = tensors["lm_head.weight"];
                head.coding = Coding::kBytes;
                head.data = head.data.first(head.data.size() / 2);
              }),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("lm_head.weight is u8, wanted f32, bf16, f16 or f8_e4m3")));
}

TEST_F(Mxfp4ModelTest, ShapesAreThoseOfWeightsThatAreNotQuantised) {
  const auto shapes = TensorShapes(*LoadModelSpec(kDir));
  EXPECT_EQ(shapes.count(down_ + "_blocks"), 0u);
  EXPECT_THAT(shapes.at(down_), ElementsAre(4, 64, 96));
  EXPECT_THAT(shapes.at(gate_up_), ElementsAre(4, 96, 128));
}

TEST_F(Mxfp4ModelTest, WeightsInTwoFormsOrAnotherThanTheConfigSaysAreRefused) {
  const auto both = [&](TensorMap& tensors, ModelSpec&) { tensors[down_] = Bf16({4, 64, 96}); };
  const auto no_longer_quantised = [](TensorMap&, ModelSpec& spec) { spec.mxfp4_experts = false; };
  EXPECT_THAT(Create(both), StatusIs(absl::StatusCode::kInvalidArgument,
                                     HasSubstr(down_ + " is there, and quant_method mxfp4 wants")));
  EXPECT_THAT(Create(no_longer_quantised),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("model.safetensors: " + gate_up_ + "_blocks is there"),
                             HasSubstr(down_ + "_blocks is there"),
                             HasSubstr("config.json has no "
                                       "quantization_config"))));
}

TEST_F(Mxfp4ModelTest, ScalesThatMeanNoNumberOrLeaveTheRangeAreRefused) {
  for (const auto& [scale, why] : {std::pair{252, ""},
                                   {253, "_scales has a scale of 253; the largest served is 252"},
                                   {255, "_scales has a scale of 255, which is no number"}}) {
    for (const std::string& name : {gate_up_, down_}) {
      const Tensor& stored = folder_->tensors().at(name + "_scales");
      std::vector<std::byte> scales(stored.data.begin(), stored.data.end());
      scales.back() = static_cast<std::byte>(scale);
      const absl::Status status =
          Create([&](TensorMap& tensors, ModelSpec&) { tensors[name + "_scales"].data = scales; });
      if (scale <= 252) {
        EXPECT_THAT(status, IsOk());
      } else {
        EXPECT_THAT(status, StatusIs(absl::StatusCode::kInvalidArgument,
                                     HasSubstr("model.safetensors: " + name + why)));
      }
    }
  }
}

TEST(QuantisedModelTest, ScalesArePartOfTheIdentity) {
  const auto folder = SafetensorsFolder::Open("tests/golden/variants/deepseek-v3-fp8");
  ASSERT_THAT(folder, IsOk());
  TensorMap tensors = folder->tensors();
  const std::string plain = WeightsIdentity(tensors);
  Tensor& scales = tensors["model.layers.1.mlp.experts.2.up_proj.weight_scale_inv"];
  std::vector<std::byte> other(scales.data.begin(), scales.data.end());
  other.back() ^= std::byte{1};
  scales.data = other;
  EXPECT_NE(WeightsIdentity(tensors), plain);
}

// Sends row r of layer l to experts that the bench chose, and remembers what it was asked.
class ChosenExperts : public RouterOverride {
 public:
  void Replace(int32_t layer, int32_t rows, int32_t experts, std::span<float> logits) override {
    layers.push_back(layer);
    ASSERT_EQ(logits.size(), static_cast<size_t>(rows * experts));
    before.assign(logits.begin(), logits.end());
    for (int32_t r = 0; r < rows; ++r) {
      for (int32_t e = 0; e < experts; ++e) {
        logits[static_cast<size_t>(r * experts + e)] = e == 0 || e == 2 ? 5.0f : 0.0f;
      }
    }
  }
  std::vector<int32_t> layers;
  std::vector<float> before;
};

TEST(RouterOverrideTest, ThePlanIsMadeOfWhatItLeaves) {
  const InMemory model = InMemory::Of(TinyModel::Make({.dense_layers = {0}}));
  auto plain = *model.Create();
  ChosenExperts chosen;
  auto runner = *model.Create("tiny", &chosen);
  const std::vector<float> own = LogitsOf(*plain);
  EXPECT_NE(LogitsOf(*runner), own);
  EXPECT_THAT(chosen.layers, ElementsAre(1));  // Layer 0 is dense.
  EXPECT_THAT(ExpertCounts(runner->stats()), ElementsAre(0, 2));
  EXPECT_GT(ExpertCounts(plain->stats())[1], 2);
  EXPECT_THAT(chosen.before, Contains(Not(0.0f)));  // The router's product had run.
}

// --- Steps

class StepTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto runner = Load(TinyModel::Make());
    ASSERT_THAT(runner, IsOk());
    runner_ = *std::move(runner);
  }
  absl::Status Step(const SequenceRows& rows, StepObserver* observer = nullptr) {
    return runner_->Step({&rows, 1}, observer);
  }
  std::unique_ptr<ModelRunner> runner_;
};

TEST_F(StepTest, BatchesOutOfBoundsAreRefusedAndChangeNothing) {
  const std::vector<float> before = LogitsOf(*runner_);
  const std::vector<TokenId> many(41, 1);
  const std::vector<kv::BlockId> all = {0, 1, 2, 3};
  const std::vector<kv::BlockId> stranger = {0, 4};
  const std::vector<kv::BlockId> negative = {-1, 0};
  const std::vector<TokenId> high = {61};
  const std::vector<TokenId> low = {-1};
  const SequenceRows bad[] = {
      {.tokens = {}, .blocks = kBlocks},
      {.tokens = kTokens, .start = -1, .blocks = kBlocks},
      {.tokens = kTokens, .start = 15, .blocks = kBlocks},          // Ends at 33, blocks hold 32.
      {.tokens = kTokens, .start = 2147483647, .blocks = kBlocks},  // Overflows int32.
      {.tokens = kTokens, .blocks = {}},
      {.tokens = kTokens, .blocks = stranger},
      {.tokens = kTokens, .blocks = negative},
      {.tokens = kTokens, .blocks = kBlocks, .logits_rows = 19},
      {.tokens = kTokens, .blocks = kBlocks, .logits_rows = -1},
      {.tokens = high, .blocks = kBlocks},
      {.tokens = low, .blocks = kBlocks},
      {.tokens = many, .blocks = all},
      {.tokens = kTokens, .start = 50, .blocks = all},  // Past the KV memory.
      {.tokens = kTokens, .blocks = kBlocks, .replica = 1},
      {.tokens = kTokens, .blocks = kBlocks, .replica = -1},
  };
  for (const SequenceRows& rows : bad) {
    EXPECT_THAT(Step(rows), StatusIs(absl::StatusCode::kInvalidArgument)) << &rows - bad;
    EXPECT_EQ(std::vector<float>(runner_->logits().begin(), runner_->logits().end()), before);
  }
  EXPECT_THAT(runner_->Step({}, nullptr), StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_EQ(LogitsOf(*runner_), before);
}

TEST_F(StepTest, ThePositionLimitIsTheModels) {
  TempDir dir;
  TinyModel model = TinyModel::Make();
  model.config["max_position_embeddings"] = 20;
  model.Write(dir.path());
  auto runner = *ModelRunner::Load(Options(dir.path()));
  const SequenceRows fits{.tokens = kTokens, .start = 2, .blocks = kBlocks};
  const SequenceRows beyond{.tokens = kTokens, .start = 3, .blocks = kBlocks};
  EXPECT_THAT(runner->Step({&fits, 1}, nullptr), IsOk());
  EXPECT_THAT(runner->Step({&beyond, 1}, nullptr),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("20")));
}

TEST_F(StepTest, LogitsComeInTheOrderAsked) {
  const std::vector<float> all = LogitsOf(*runner_);
  const std::vector<kv::BlockId> others = {0, 2};
  const std::vector<SequenceRows> batch = {
      {.tokens = kTokens, .blocks = others, .logits_rows = 0},
      {.tokens = kTokens, .blocks = kBlocks, .logits_rows = 2},
  };
  ASSERT_THAT(runner_->Step(batch, nullptr), IsOk());
  EXPECT_EQ(std::vector<float>(runner_->logits().begin(), runner_->logits().end()),
            std::vector<float>(all.end() - 2 * 61, all.end()));
}

class Recorder : public StepObserver {
 public:
  explicit Recorder(int32_t stop_after = -1) : stop_after_(stop_after) {}
  bool OnLayerDone(int32_t layer) override {
    layers.push_back(layer);
    return layer != stop_after_;
  }
  std::vector<int32_t> layers;

 private:
  const int32_t stop_after_;
};

TEST_F(StepTest, TheObserverSeesEachLayerAndCanStop) {
  const SequenceRows rows{.tokens = kTokens, .blocks = kBlocks, .logits_rows = 1};
  Recorder all;
  EXPECT_THAT(Step(rows, &all), IsOk());
  EXPECT_THAT(all.layers, ElementsAre(0, 1));
  Recorder first(/*stop_after=*/0);
  EXPECT_THAT(Step(rows, &first), StatusIs(absl::StatusCode::kCancelled));
  EXPECT_THAT(first.layers, ElementsAre(0));
  EXPECT_THAT(runner_->logits(), IsEmpty());
  EXPECT_THAT(Step(rows), IsOk());  // The runner is as good as new.
}

TEST_F(StepTest, EntriesThatLeaveAreNotTouchedAndTheOthersGoOn) {
  class Leaver final : public Recorder {
   public:
    std::span<const size_t> Leaving() override { return layers.back() == 0 ? leaving_ : none_; }

   private:
    std::vector<size_t> leaving_ = {0, 2};
    std::vector<size_t> none_;
  };
  const std::vector<TokenId> short_prompt = {5, 6, 7};
  const std::vector<kv::BlockId> tables[] = {{0, 1}, {2}, {3}};
  const SequenceRows stays{.tokens = short_prompt, .blocks = tables[1], .logits_rows = 2};
  ASSERT_THAT(Step(stays), IsOk());
  const std::vector<float> alone(runner_->logits().begin(), runner_->logits().end());

  kv::KvArena& kv = runner_->kv();
  const auto mark = std::byte{0x5a};
  for (const kv::BlockId block : {0, 1, 3}) std::ranges::fill(kv.BlockLayerSpan(1, block), mark);
  const std::vector<SequenceRows> batch = {
      {.tokens = kTokens, .blocks = tables[0], .logits_rows = 3},
      stays,
      {.tokens = short_prompt, .blocks = tables[2], .logits_rows = 1},
  };
  Leaver leaver;
  ASSERT_THAT(runner_->Step(batch, &leaver), IsOk());
  EXPECT_THAT(runner_->logits(), ElementsAreArray(alone));
  for (const kv::BlockId block : {0, 1, 3}) {
    EXPECT_THAT(kv.BlockLayerSpan(1, block), Each(mark)) << "block " << block;
  }
}

// Two rows, one of them alone in its batch: bytes of each active expert count once.
TEST_F(StepTest, StatsCountWhatWasRead) {
  const std::vector<TokenId> token = {5};
  const std::vector<kv::BlockId> a = {0};
  const std::vector<kv::BlockId> b = {1};
  const std::vector<SequenceRows> batch = {
      {.tokens = token, .blocks = a, .logits_rows = 1},
      {.tokens = token, .blocks = b, .logits_rows = 1},
  };
  ASSERT_THAT(runner_->Step({batch.data(), 1}, nullptr), IsOk());
  const StepStats one = runner_->stats();
  EXPECT_THAT(ExpertCounts(one), ElementsAre(2, 2));
  // As packed, in blocks of 32 outputs by 32 inputs, two bytes each: a layer has one for each of q,
  // k, v, o and router, and for each of two experts two of gate and up (20 wide) and one of down.
  // The head (61 by 24) takes two. One embedding row.
  const int64_t block = 32 * 32 * 2;
  EXPECT_EQ(one.weight_bytes_read, (2 * (5 + 2 * 3) + 2) * block + 2 * 24);
  EXPECT_EQ(one.kv_bytes_read, 2 * (2 * 2 * 6) * 2);
  // The same token twice calls the same experts: only the embedding row is read again.
  ASSERT_THAT(runner_->Step(batch, nullptr), IsOk());
  EXPECT_THAT(ExpertCounts(runner_->stats()), ElementsAre(2, 2));
  EXPECT_EQ(runner_->stats().weight_bytes_read, one.weight_bytes_read + 2 * 24);
  EXPECT_EQ(runner_->stats().kv_bytes_read, 2 * one.kv_bytes_read);
}

TEST_F(StepTest, WhatKernelsStreamIsWhatThePlanSays) {
  const std::vector<kv::BlockId> other = {0, 2};
  const std::vector<TokenId> token = {5};
  const std::vector<SequenceRows> steps[] = {
      {{.tokens = token, .blocks = other, .logits_rows = 1}},
      {{.tokens = token, .blocks = other}},  // No head.
      {{.tokens = kTokens, .blocks = kBlocks, .logits_rows = 3}},
      {{.tokens = kTokens, .blocks = kBlocks, .logits_rows = 18},
       {.tokens = token, .start = 1, .blocks = other, .logits_rows = 1, .decode = true}},
  };
  auto dense = Load(TinyModel::Make({.tied = false, .head = true, .dense_layers = {0}}));
  ASSERT_THAT(dense, IsOk());
  for (ModelRunner* runner : {runner_.get(), dense->get()}) {
    for (const std::vector<SequenceRows>& step : steps) {
      ASSERT_THAT(runner->Step(step, nullptr), IsOk());
      EXPECT_GT(runner->stats().weight_bytes_read, 0);
      EXPECT_EQ(runner->stats().weight_bytes_streamed, runner->stats().weight_bytes_read);
    }
  }
}

// Of a model with latents, from the golden fixtures.
TEST(LatentStepTest, StatsCountWhatWasRead) {
  auto runner = ModelRunner::Load(Options("tests/golden/variants/deepseek-v2-grouped"));
  ASSERT_THAT(runner, IsOk());
  const ModelSpec& spec = (*runner)->spec();
  EXPECT_EQ((*runner)->kv().layout(), KvLayoutOf(spec, DType::kBf16));
  EXPECT_EQ((*runner)->kv().layout().kind, kv::KvKind::kLatent);
  const SequenceRows rows{.tokens = kTokens, .blocks = kBlocks, .logits_rows = 1};
  ASSERT_THAT((*runner)->Step({&rows, 1}, nullptr), IsOk());
  const StepStats& stats = (*runner)->stats();
  EXPECT_EQ(stats.kv_bytes_read, 18 * 2 * (26 + 8) * 2) << "tokens, layers, latent and key, bf16";
  EXPECT_GT(stats.weight_bytes_read, 0);
  EXPECT_EQ(stats.weight_bytes_streamed, stats.weight_bytes_read);
}

// A poisoned weight must show in the logits of the rows that meet it, and in no others.
TEST(PoisonTest, NanReachesTheLogitsOfItsRowsAlone) {
  TinyModel model = TinyModel::Make({.tied = false, .head = true});
  const std::vector<TokenId> clean = {5, 6};
  const std::vector<TokenId> poisoned = {7, 8};
  model.tensors["model.embed_tokens.weight"].values[7 * 24] = std::nanf("");
  auto runner = *Load(model);
  const std::vector<kv::BlockId> a = {0};
  const std::vector<kv::BlockId> b = {1};
  const std::vector<SequenceRows> batch = {
      {.tokens = poisoned, .blocks = a, .logits_rows = 1},
      {.tokens = clean, .blocks = b, .logits_rows = 1},
  };
  ASSERT_THAT(runner->Step(batch, nullptr), IsOk());
  for (size_t i = 0; i < 2 * 61; ++i) EXPECT_EQ(std::isnan(runner->logits()[i]), i < 61) << i;
}

}  // namespace
}  // namespace lynx::model
