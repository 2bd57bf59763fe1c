// The model against Hugging Face transformers in float32 (make_golden.py), on committed fixtures.
// Measure of a difference: largest |ours - theirs| over the vocabulary, relative to the largest
// |theirs| at that position.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "common/kv/block_pool.h"
#include "common/model/model_runner.h"
#include "common/model/model_spec.h"
#include "common/model/shard_plan.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/core/isa.h"
#include "tests/golden/golden_compare.h"
#include "tests/support/golden_fixture.h"
#include "tests/support/moving_experts.h"
#include "tests/support/rank_group_runner.h"
#include "tests/support/status_matchers.h"

namespace lynx::model {
namespace {

using ::lynx::testing::Blocks;
using ::lynx::testing::CompareGreedy;
using ::lynx::testing::CompareLogits;
using ::lynx::testing::Comparison;
using ::lynx::testing::GoldenPrompt;
using ::lynx::testing::GoldenTestName;
using ::lynx::testing::GoldenVariantPath;
using ::lynx::testing::IsOk;
using ::lynx::testing::kGoldenBoundBf16;
using ::lynx::testing::kGoldenBoundF32;
using ::lynx::testing::kGoldenDivergenceBf16;
using ::lynx::testing::kGoldenVariants;
using ::lynx::testing::kKvBlocks;
using ::lynx::testing::kMostGroups;
using ::lynx::testing::LoadGoldenFixture;
using ::lynx::testing::MovingExpertsRunner;
using ::lynx::testing::RankGroupRunner;

constexpr char kDemoFixture[] = "tests/golden/lynx-tiny-moe";

constexpr int kMaxRows = 512;

// bf16: GEMM inputs and KV round to 8 significant bits, 2^-9 relative each. About 40 such roundings
// lie between embedding and logits of the demo model; independent errors grow like their root:
// sqrt(40) * 2^-9 = 1.2 % at the typical position.
constexpr double kMedianBoundBf16 = 1.2e-2;

std::unique_ptr<ModelRunner> LoadTiny(DType dtype, int32_t threads = 0,
                                      const std::string& model_dir = "models/lynx-tiny-moe",
                                      std::optional<kernels::Isa> isa = std::nullopt) {
  auto runner = ModelRunner::Load({.model_dir = model_dir,
                                   .compute_dtype = dtype,
                                   .kv_dtype = dtype,
                                   .kv_blocks = kKvBlocks * kMostGroups,
                                   .max_step_rows = kMaxRows,
                                   .max_step_logits = kMaxRows,
                                   .threads = threads,
                                   .isa = isa});
  EXPECT_THAT(runner, IsOk());
  return *std::move(runner);
}

TEST(GoldenF32Test, AgreesWithTransformers) {
  auto runner = LoadTiny(DType::kF32);
  const std::vector<GoldenPrompt> prompts = LoadGoldenFixture(kDemoFixture);
  const Comparison comparison = CompareLogits(*runner, prompts);
  EXPECT_LE(comparison.worst(), kGoldenBoundF32);
  EXPECT_EQ(comparison.same_best, static_cast<int64_t>(comparison.differences.size()));
  EXPECT_EQ(CompareGreedy(*runner, prompts, kGoldenBoundF32), 0);
}

TEST(GoldenBf16Test, AgreesWithTransformersWithinItsRounding) {
  auto runner = LoadTiny(DType::kBf16);
  const std::vector<GoldenPrompt> prompts = LoadGoldenFixture(kDemoFixture);
  const Comparison comparison = CompareLogits(*runner, prompts);
  EXPECT_LE(comparison.worst(), kGoldenBoundBf16);
  EXPECT_LE(comparison.median(), kMedianBoundBf16);
  CompareGreedy(*runner, prompts, kGoldenBoundBf16);
}

class GoldenVariantTest : public ::testing::TestWithParam<const char*> {};

TEST_P(GoldenVariantTest, AgreesWithTransformers) {
  const std::string base = GoldenVariantPath(GetParam());
  auto runner = LoadTiny(DType::kF32, /*threads=*/0, base);
  const std::vector<GoldenPrompt> prompts = LoadGoldenFixture(base);
  EXPECT_LE(CompareLogits(*runner, prompts).worst(), kGoldenBoundF32);
  EXPECT_EQ(CompareGreedy(*runner, prompts, kGoldenBoundF32), 0);
}

TEST_P(GoldenVariantTest, InBf16TheDistributionIsTheirs) {
  const std::string base = GoldenVariantPath(GetParam());
  auto runner = LoadTiny(DType::kBf16, /*threads=*/0, base);
  EXPECT_LE(CompareLogits(*runner, LoadGoldenFixture(base)).worst_kl, kGoldenDivergenceBf16);
}

INSTANTIATE_TEST_SUITE_P(Variants, GoldenVariantTest, ::testing::ValuesIn(kGoldenVariants),
                         [](const auto& param) { return GoldenTestName(param.param); });

// Several ranks that share the model, in all ways in which its sizes can be shared.
class GoldenRanksTest : public ::testing::TestWithParam<const char*> {
 protected:
  std::string base() const { return GoldenVariantPath(GetParam()); }
  void ForEachLayout(DType dtype, const std::function<void(ModelRunner& runner)>& body) {
    int layouts = 0;
    for (const auto& [tp, ep, spare] :
         {std::tuple{2, 1, 0}, {2, 2, 0}, {3, 3, 0}, {4, 1, 0}, {4, 2, 0}, {4, 4, 0}, {2, 2, 1}}) {
      SCOPED_TRACE("tp " + std::to_string(tp) + " ep " + std::to_string(ep) + " spare " +
                   std::to_string(spare));
      const RunnerOptions options = {.model_dir = base(),
                                     .compute_dtype = dtype,
                                     .kv_dtype = dtype,
                                     .kv_blocks = kKvBlocks * kMostGroups,
                                     .max_step_rows = kMaxRows,
                                     .max_step_logits = kMaxRows,
                                     .threads = 1,
                                     .layout = {.tp = tp, .dp = 1, .ep = ep, .ep_spare = spare}};
      const auto runner = RankGroupRunner::Load(options);
      EXPECT_EQ(runner.status(), CheckLayout(LoadModelSpec(base()).value(), options.layout));
      if (!runner.ok()) continue;
      ++layouts;
      body(**runner);
    }
    EXPECT_GT(layouts, 0);
  }
};

TEST_P(GoldenRanksTest, AgreesWithTransformers) {
  const std::vector<GoldenPrompt> prompts = LoadGoldenFixture(base());
  ForEachLayout(DType::kF32, [&](ModelRunner& runner) {
    EXPECT_LE(CompareLogits(runner, prompts).worst(), kGoldenBoundF32);
    EXPECT_EQ(CompareGreedy(runner, prompts, kGoldenBoundF32), 0);
  });
}

TEST_P(GoldenRanksTest, InBf16TheDistributionIsTheirs) {
  const std::vector<GoldenPrompt> prompts = LoadGoldenFixture(base());
  ForEachLayout(DType::kBf16, [&](ModelRunner& runner) {
    EXPECT_LE(CompareLogits(runner, prompts).worst_kl, kGoldenDivergenceBf16);
  });
}

INSTANTIATE_TEST_SUITE_P(Variants, GoldenRanksTest, ::testing::ValuesIn(kGoldenVariants),
                         [](const auto& param) { return GoldenTestName(param.param); });

// What one run of a sequence leaves behind, by its bits.
struct Trace {
  std::vector<float> logits;  // Of every position.
  std::vector<std::byte> kv;  // Of every block, layer by layer.
  bool operator==(const Trace& other) const {
    return kv == other.kv && logits.size() == other.logits.size() &&
           std::memcmp(logits.data(), other.logits.data(), logits.size() * sizeof(float)) == 0;
  }
};

// How to cut the sequence into steps, and who shares them.
struct Schedule {
  int32_t chunk = 0;
  bool decode = false;
  int32_t companions = 0;  // Sequences of other tokens that step along, before and after it.
  // What windows have passed is another's before the next step.
  bool forgets = false;
};

Trace RunSequence(ModelRunner& runner, const std::vector<TokenId>& tokens,
                  const Schedule& schedule) {
  const auto total = static_cast<int32_t>(tokens.size());
  const auto own_blocks = static_cast<int32_t>(kv::BlocksFor(total));
  // Other blocks in another order each time: where KV lies must not matter.
  const kv::KvGroups& groups = runner.kv().layout().groups;
  const int32_t layers = runner.spec().layers;
  std::vector<kv::BlockId> blocks = Blocks(runner, schedule.chunk % 7, own_blocks);
  std::reverse(blocks.begin(), blocks.end());
  const std::vector<kv::BlockId> all_blocks = blocks;
  // Block i of a layer.
  const auto bytes_of = [&](int32_t layer, int32_t i) {
    const int32_t at = groups.group_of(layer) * own_blocks + i;
    return runner.kv().BlockLayerSpan(layer, all_blocks[static_cast<size_t>(at)]);
  };
  for (int32_t layer = 0; layer < layers; ++layer) {
    for (int32_t i = 0; i < own_blocks; ++i) {  // As another sequence might have left it.
      std::ranges::fill(bytes_of(layer, i), std::byte{0xff});
    }
  }
  std::map<std::pair<int32_t, int32_t>, std::vector<std::byte>> forgotten;  // By layer and block.
  const auto forget_before = [&](int32_t position) {
    for (int32_t layer = 0; layer < layers; ++layer) {
      const int32_t group = groups.group_of(layer);
      for (int32_t i = 0; i < groups.FirstBlock(group, position); ++i) {
        const auto bytes = bytes_of(layer, i);
        if (!forgotten.try_emplace({layer, i}, bytes.begin(), bytes.end()).second) continue;
        std::ranges::fill(bytes, std::byte{0xff});
        blocks[static_cast<size_t>(group * own_blocks + i)] = kv::kNoBlock;
      }
    }
  };
  std::vector<std::vector<kv::BlockId>> other_blocks;
  std::vector<std::vector<TokenId>> other_tokens;
  for (int32_t i = 0; i < schedule.companions; ++i) {
    other_blocks.push_back(Blocks(runner, 30 + i * 2, 2));
    other_tokens.push_back({static_cast<TokenId>((100 + i) % runner.spec().vocab_size), 7, 9});
  }
  Trace trace;
  const auto vocab = static_cast<size_t>(runner.spec().vocab_size);
  for (int32_t start = 0; start < total; start += schedule.chunk) {
    const int32_t count = std::min(schedule.chunk, total - start);
    if (schedule.forgets) forget_before(start);
    std::vector<SequenceRows> batch;
    size_t rows_before = 0;
    for (int32_t i = 0; i < schedule.companions; ++i) {
      const auto at = static_cast<size_t>(i);
      if (i == schedule.companions / 2) rows_before = batch.size();
      batch.push_back({.tokens = other_tokens[at],
                       .start = start % 20,
                       .blocks = other_blocks[at],
                       .logits_rows = 1,
                       .decode = false});
    }
    const auto place = batch.begin() + static_cast<std::ptrdiff_t>(rows_before);
    batch.insert(place, {.tokens = std::span(tokens).subspan(static_cast<size_t>(start),
                                                             static_cast<size_t>(count)),
                         .start = start,
                         .blocks = blocks,
                         .logits_rows = count,
                         .decode = schedule.decode});
    EXPECT_THAT(runner.Step(batch, nullptr), IsOk());
    const auto own =
        runner.logits().subspan(rows_before * vocab, static_cast<size_t>(count) * vocab);
    trace.logits.insert(trace.logits.end(), own.begin(), own.end());
  }
  for (int32_t layer = 0; layer < layers; ++layer) {
    for (int32_t i = 0; i < own_blocks; ++i) {
      const auto old = forgotten.find({layer, i});
      const std::span<const std::byte> bytes =
          old != forgotten.end() ? std::span<const std::byte>(old->second) : bytes_of(layer, i);
      trace.kv.insert(trace.kv.end(), bytes.begin(), bytes.end());
    }
  }
  return trace;
}

// A model with the golden fixture beside it.
struct ExactModel {
  const char* name;
  const char* folder;
  const char* fixture;
};

void PrintTo(const ExactModel& model, std::ostream* os) { *os << model.name; }

constexpr ExactModel kExactModels[] = {
    {"heads", "models/lynx-tiny-moe", kDemoFixture},
    {"latents", "tests/golden/variants/deepseek-v3-plain",
     "tests/golden/variants/deepseek-v3-plain"},
    {"windows", "tests/golden/variants/gpt-oss", "tests/golden/variants/gpt-oss"},
    {"chunks", "tests/golden/variants/llama4", "tests/golden/variants/llama4"},
};

class ExactnessTest : public ::testing::TestWithParam<std::tuple<DType, kernels::Isa, ExactModel>> {
 protected:
  void SetUp() override {
    if (isa() > kernels::BestIsa()) GTEST_SKIP() << kernels::Name(isa()) << " is not usable here";
  }
  DType dtype() const { return std::get<0>(GetParam()); }
  kernels::Isa isa() const { return std::get<1>(GetParam()); }
  std::unique_ptr<ModelRunner> Load(int32_t threads = 0) const {
    return LoadTiny(dtype(), threads, std::get<2>(GetParam()).folder, isa());
  }
  // The fixture's prompts, over and over.
  static std::vector<TokenId> Tokens(size_t count) {
    std::vector<TokenId> tokens;
    while (tokens.size() < count) {
      for (const GoldenPrompt& prompt : LoadGoldenFixture(std::get<2>(GetParam()).fixture)) {
        tokens.insert(tokens.end(), prompt.tokens.begin(), prompt.tokens.end());
      }
    }
    tokens.resize(count);
    return tokens;
  }
};

// The promise of DESIGN 4.1: same bits whatever the chunks, the phase and the company. The tokens
// leave the last block partly unwritten: not a byte of it may change either.
TEST_P(ExactnessTest, LogitsAndKvBitsDependOnTheSequenceAlone) {
  auto runner = Load();
  // Few where the bodies are slow.
  const std::vector<TokenId> tokens = Tokens(isa() == kernels::BestIsa() ? 333 : 77);
  const auto total = static_cast<int32_t>(tokens.size());
  const Trace whole = RunSequence(*runner, tokens, {.chunk = total});
  EXPECT_FALSE(std::isnan(whole.logits[0]));
  const Schedule schedules[] = {
      {.chunk = 1, .decode = true},
      {.chunk = 1},
      {.chunk = 7},
      {.chunk = 64},
      {.chunk = total, .companions = 6},
      {.chunk = 1, .decode = true, .companions = 15},
      {.chunk = 13, .companions = 3},
      {.chunk = 1, .decode = true, .forgets = true},
      {.chunk = 29, .companions = 3, .forgets = true},
  };
  for (const Schedule& schedule : schedules) {
    EXPECT_TRUE(RunSequence(*runner, tokens, schedule) == whole)
        << "chunks of " << schedule.chunk << (schedule.decode ? " decoded" : "") << " with "
        << schedule.companions << " companions" << (schedule.forgets ? ", forgetting" : "");
  }
}

TEST_P(ExactnessTest, ThreadsDoNotChangeABit) {
  const std::vector<TokenId> tokens = Tokens(330);
  const Trace one = RunSequence(*Load(1), tokens, {.chunk = 50});
  for (int32_t threads : {2, 3, 8}) {
    EXPECT_TRUE(RunSequence(*Load(threads), tokens, {.chunk = 50}) == one) << threads << " threads";
  }
}

// The same promise for each of several ranks: sums over ranks have an order of their own.
TEST(RanksExactnessTest, LogitsAndKvBitsDependOnTheSequenceAlone) {
  for (const ExactModel& model : kExactModels) {
    SCOPED_TRACE(model.name);
    std::vector<TokenId> tokens;
    for (const GoldenPrompt& prompt : LoadGoldenFixture(model.fixture)) {
      tokens.insert(tokens.end(), prompt.tokens.begin(), prompt.tokens.end());
    }
    tokens.resize(std::min<size_t>(tokens.size(), 90));
    const auto total = static_cast<int32_t>(tokens.size());
    auto runner = RankGroupRunner::Load({.model_dir = model.folder,
                                         .compute_dtype = DType::kBf16,
                                         .kv_dtype = DType::kBf16,
                                         .kv_blocks = kKvBlocks * kMostGroups,
                                         .max_step_rows = kMaxRows,
                                         .max_step_logits = kMaxRows,
                                         .threads = 1,
                                         .layout = {.tp = 2, .dp = 1, .ep = 2}});
    ASSERT_THAT(runner, IsOk());
    const Trace whole = RunSequence(**runner, tokens, {.chunk = total});
    for (const Schedule& schedule :
         {Schedule{.chunk = 1, .decode = true}, Schedule{.chunk = 13, .companions = 3},
          Schedule{.chunk = total, .companions = 6},
          Schedule{.chunk = 1, .decode = true, .companions = 15}}) {
      EXPECT_TRUE(RunSequence(**runner, tokens, schedule) == whole)
          << "chunks of " << schedule.chunk << " with " << schedule.companions << " companions";
    }
  }
}

// Nor on which ranks hold the experts, of every kind and from every form of file.
TEST_P(GoldenRanksTest, ExpertsThatMoveChangeNoBit) {
  for (const auto& [tp, ep] : {std::pair{2, 2}, {4, 2}}) {
    const RunnerOptions options = {.model_dir = base(),
                                   .compute_dtype = DType::kBf16,
                                   .kv_dtype = DType::kBf16,
                                   .kv_blocks = kKvBlocks * kMostGroups,
                                   .max_step_rows = kMaxRows,
                                   .max_step_logits = kMaxRows,
                                   .threads = 1,
                                   .layout = {.tp = tp, .dp = 1, .ep = ep, .ep_spare = 1}};
    if (!CheckLayout(LoadModelSpec(base()).value(), options.layout).ok()) continue;
    std::vector<TokenId> tokens;
    for (const GoldenPrompt& prompt : LoadGoldenFixture(base())) {
      tokens.insert(tokens.end(), prompt.tokens.begin(), prompt.tokens.end());
    }
    tokens.resize(std::min<size_t>(tokens.size(), 14));
    auto ranks = RankGroupRunner::Load(options);
    ASSERT_THAT(ranks, IsOk());
    const Trace still =
        RunSequence(**ranks, tokens, {.chunk = static_cast<int32_t>(tokens.size())});
    MovingExpertsRunner moving(**ranks, /*seed=*/3);
    EXPECT_TRUE(RunSequence(moving, tokens, {.chunk = 1, .decode = true, .companions = 3}) == still)
        << "tp " << tp;
    EXPECT_GT(moving.moved(), 10);
  }
}

INSTANTIATE_TEST_SUITE_P(Classes, ExactnessTest,
                         ::testing::Combine(::testing::Values(DType::kF32, DType::kBf16),
                                            ::testing::ValuesIn(kernels::kAllIsas),
                                            ::testing::ValuesIn(kExactModels)),
                         [](const auto& param) {
                           return std::string(Name(std::get<0>(param.param))) + "_" +
                                  std::string(kernels::Name(std::get<1>(param.param))) + "_" +
                                  std::get<2>(param.param).name;
                         });

}  // namespace
}  // namespace lynx::model
