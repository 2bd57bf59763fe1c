// Faults that users of such systems reported when models were loaded.

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "common/model/fp8_rows.h"
#include "common/model/model_runner.h"
#include "common/model/model_spec.h"
#include "common/model/model_weights.h"
#include "common/model/safetensors.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/core/float_convert.h"
#include "nlohmann/json.hpp"
#include "tests/support/kernel_test.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_model.h"

namespace lynx::model {
namespace {

using ::lynx::testing::Encode;
using ::lynx::testing::IsOk;
using ::lynx::testing::RandomNormal;
using ::lynx::testing::StatusIs;
using ::lynx::testing::TempDir;
using ::lynx::testing::TinyModel;
using ::nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

absl::StatusOr<std::unique_ptr<ModelRunner>> Create(const ModelSpec& spec,
                                                    const TensorMap& tensors) {
  return ModelRunner::Create({.model_dir = {},
                              .compute_dtype = DType::kBf16,
                              .kv_dtype = DType::kBf16,
                              .kv_blocks = spec.layers,
                              .max_step_rows = 8,
                              .max_step_logits = 8,
                              .threads = 1},
                             spec, tensors, "test");
}

std::vector<float> LogitsOf(ModelRunner& runner) {
  const std::vector<TokenId> tokens = {5, 17, 60, 0, 3};
  // One for each group of layers.
  std::vector<kv::BlockId> blocks(static_cast<size_t>(runner.kv().layout().groups.count()));
  std::iota(blocks.begin(), blocks.end(), 0);
  const SequenceRows rows{.tokens = tokens, .start = 0, .blocks = blocks, .logits_rows = 5};
  EXPECT_THAT(runner.Step({&rows, 1}, nullptr), IsOk());
  return {runner.logits().begin(), runner.logits().end()};
}

// --- The output head of a wrapped text model

TEST(OutputHeadTest, AFlagNestedInTheTextPartTiesAWrappedModel) {
  const std::filesystem::path dir = "tests/golden/variants/llama4";
  std::ifstream file(dir / "config.json");
  json config = json::parse(file);
  const auto folder = SafetensorsFolder::Open(dir);
  ASSERT_THAT(folder, IsOk());
  const std::string head = "language_model.lm_head.weight";
  const std::string embedding = "language_model.model.embed_tokens.weight";
  TensorMap tensors = folder->tensors();
  ASSERT_EQ(tensors.count(head), 1u);

  // Untied, as it is.
  const auto untied = Create(*ParseModelSpec(config, "config.json"), tensors);
  ASSERT_THAT(untied, IsOk());
  // Tied by the part's own flag: the head that is there all the same is not used, and said so.
  config["text_config"]["tie_word_embeddings"] = true;
  const ModelSpec tied_spec = *ParseModelSpec(config, "config.json");
  const auto tied = Create(tied_spec, tensors);
  ASSERT_THAT(tied, IsOk());
  EXPECT_THAT((*tied)->spec().notes, ElementsAre(HasSubstr(head)));
  const std::vector<float> logits = LogitsOf(**tied);
  EXPECT_NE(logits, LogitsOf(**untied));
  // Without one: the same.
  tensors.erase(head);
  const auto bare = Create(tied_spec, tensors);
  ASSERT_THAT(bare, IsOk());
  EXPECT_EQ(LogitsOf(**bare), logits);
  // Untied by the part's own flag and without one: refused, whatever stands beside the part.
  config["text_config"]["tie_word_embeddings"] = false;
  config["tie_word_embeddings"] = true;
  EXPECT_THAT(Create(*ParseModelSpec(config, "config.json"), tensors),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr(head)));
  // Untied with a head of the embedding's values: as tied.
  tensors[head] = tensors[embedding];
  const auto copied = Create(*ParseModelSpec(config, "config.json"), tensors);
  ASSERT_THAT(copied, IsOk());
  EXPECT_EQ(LogitsOf(**copied), logits);
}

// --- Stray files

TEST(StrayFilesTest, TakeNoMemory) {
  TempDir dir;
  const TinyModel model = TinyModel::Make();
  model.WriteSharded(dir.path(), 2);
  const auto outline = [&] {
    const auto folder = SafetensorsFolder::Open(dir.path());
    EXPECT_THAT(folder, IsOk());
    WeightsOutline found = OutlineWeights(folder->tensors(), *LoadModelSpec(dir.path()));
    EXPECT_THAT(found.problems.ToStatus(), IsOk());
    return found.packed_bytes + found.vector_bytes;
  };
  const int64_t bytes = outline();
  TinyModel::Make({.dtype = DType::kF32}).Write(dir.path());
  TinyModel::Make({.dtype = DType::kF16}).WriteSharded(dir.path() / "original", 2);
  EXPECT_EQ(outline(), bytes);
}

// --- Scales of blocks

constexpr int64_t kBlock = 128;

// A model of 900 x 386 experts in blocks of 128, none of whose sizes a block divides; `fp8` names
// the layers whose experts are of e4m3, the others are of the same values in bf16.
struct BlockModel {
  ModelSpec spec;
  TensorMap tensors;
  std::map<std::string, std::vector<std::byte>> data;

  explicit BlockModel(const std::vector<int>& fp8) {
    json config = TinyModel::Make().config;
    config["hidden_size"] = 386;
    config["moe_intermediate_size"] = 900;
    config["quantization_config"] = {{"quant_method", "fp8"}, {"weight_block_size", {128, 128}}};
    spec = *ParseModelSpec(config, "config.json");
    uint32_t seed = 1;
    for (const auto& [name, shape] : TensorShapes(spec)) {
      if (name.find(".experts.") == std::string::npos) {
        size_t elements = 1;
        for (const int64_t extent : shape) elements *= static_cast<size_t>(extent);
        Put(name, shape, DType::kBf16, Encode(RandomNormal(elements, seed++), DType::kBf16));
        continue;
      }
      bool coded = false;
      for (const int layer : fp8) {
        coded = coded || name.starts_with("model.layers." + std::to_string(layer) + ".");
      }
      PutExpert(name, shape, seed++, coded);
    }
  }

  void Put(const std::string& name, const std::vector<int64_t>& shape, DType dtype,
           std::vector<std::byte> bytes, Coding coding = Coding::kPlain) {
    std::vector<std::byte>& kept = data[name] = std::move(bytes);
    tensors[name] = {.dtype = dtype, .coding = coding, .shape = shape, .data = kept};
  }

  void PutExpert(const std::string& name, const std::vector<int64_t>& shape, uint32_t seed,
                 bool coded) {
    const int64_t rows = shape[0], width = shape[1];
    const int64_t across = (width + kBlock - 1) / kBlock;
    const int64_t down = (rows + kBlock - 1) / kBlock;
    std::vector<float> scales;
    for (int64_t i = 0; i < down * across; ++i) {
      scales.push_back(0.001f * static_cast<float>(1 + (i * 7 + seed) % 13));
    }
    std::vector<std::byte> codes;
    std::vector<float> values;
    const std::vector<float> random = RandomNormal(static_cast<size_t>(rows * width), seed);
    for (int64_t i = 0; i < rows * width; ++i) {
      // Of codes from 0 to 119 and their negatives: no NaN among them.
      const auto size = static_cast<int>(std::fabs(random[static_cast<size_t>(i)]) * 30) % 120;
      codes.push_back(
          static_cast<std::byte>(size + (random[static_cast<size_t>(i)] < 0 ? 128 : 0)));
      const int64_t block = i / width / kBlock * across + i % width / kBlock;
      values.push_back(E4m3ToF32(codes.back()) * scales[static_cast<size_t>(block)]);
    }
    if (!coded) return Put(name, shape, DType::kBf16, Encode(values, DType::kBf16));
    Put(name, shape, DType::kBf16, std::move(codes), Coding::kE4m3);
    Put(name + "_scale_inv", {down, across}, DType::kF32, Encode(scales, DType::kF32));
  }
};

TEST(BlockScalesTest, PartialBlocksAndMixedLayersComputeWhatTheirValuesDo) {
  const BlockModel plain({});
  const auto reference = Create(plain.spec, plain.tensors);
  ASSERT_THAT(reference, IsOk());
  const std::vector<float> logits = LogitsOf(**reference);
  for (const float value : logits) ASSERT_TRUE(std::isfinite(value));
  for (const std::vector<int>& layers : {std::vector<int>{0, 1}, {0}, {1}}) {
    const BlockModel coded(layers);
    const auto runner = Create(coded.spec, coded.tensors);
    ASSERT_THAT(runner, IsOk());
    EXPECT_EQ(LogitsOf(**runner), logits) << layers.size() << " from " << layers[0];
  }
}

TEST(BlockScalesTest, AnotherNameOfScalesIsRefused) {
  for (const char* suffix : {"_scale", ".scale", "_scales"}) {
    BlockModel model({1});
    const std::string name = "model.layers.1.mlp.experts.2.up_proj.weight";
    auto scales = model.tensors.extract(name + "_scale_inv");
    scales.key() = name + suffix;
    model.tensors.insert(std::move(scales));
    EXPECT_THAT(Create(model.spec, model.tensors),
                StatusIs(absl::StatusCode::kNotFound, HasSubstr(name + "_scale_inv")));
    // Beside the right one it is a tensor that would change the answer if it mattered.
    BlockModel both({1});
    both.tensors[name + suffix] = both.tensors[name + "_scale_inv"];
    EXPECT_THAT(Create(both.spec, both.tensors),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(name + suffix)));
  }
}

// As a loader makes them that rounds down, or takes another size of block.
TEST(BlockScalesTest, ScalesOfAnotherGridAreRefusedWithSizes) {
  for (const std::vector<int64_t>& grid : {std::vector<int64_t>{7, 3}, {8, 3}, {7, 4}, {15, 7}}) {
    BlockModel model({1});
    const std::string scales = "model.layers.1.mlp.experts.2.up_proj.weight_scale_inv";
    model.Put(scales, grid, DType::kF32,
              Encode(std::vector<float>(static_cast<size_t>(grid[0] * grid[1]), 1), DType::kF32));
    EXPECT_THAT(Create(model.spec, model.tensors),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         ::testing::AllOf(HasSubstr(scales), HasSubstr("wanted [8, 4]"))));
  }
}

}  // namespace
}  // namespace lynx::model
