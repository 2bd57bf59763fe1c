// Replicas of attention, each with sequences of its own, that share the routed experts: every
// family against Hugging Face transformers (make_golden.py), and what is promised of bits.

#include <algorithm>
#include <cstring>
#include <memory>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/kv/block_pool.h"
#include "common/model/model_runner.h"
#include "common/model/model_spec.h"
#include "common/model/shard_plan.h"
#include "gtest/gtest.h"
#include "tests/support/golden_fixture.h"
#include "tests/support/rank_group_runner.h"
#include "tests/support/status_matchers.h"

namespace lynx::model {
namespace {

using ::lynx::testing::GoldenPrompt;
using ::lynx::testing::GoldenTestName;
using ::lynx::testing::GoldenVariantPath;
using ::lynx::testing::IsOk;
using ::lynx::testing::kGoldenBoundF32;
using ::lynx::testing::kGoldenDivergenceBf16;
using ::lynx::testing::kGoldenVariants;
using ::lynx::testing::LoadGoldenFixture;
using ::lynx::testing::RankGroupRunner;

constexpr int kBlocks = 8;  // Of a sequence and a group of layers.
constexpr int kSequences = 8;
constexpr int kMostGroups = 5;
constexpr int kMaxRows = 128;

RunnerOptions Options(const std::string& folder, DType dtype, const ParallelLayout& layout) {
  return {.model_dir = folder,
          .compute_dtype = dtype,
          .kv_dtype = dtype,
          .kv_blocks = kBlocks * kSequences * kMostGroups,
          .max_step_rows = kMaxRows,
          .max_step_logits = kMaxRows,
          .threads = 1,
          .layout = layout};
}

std::string Name(const ParallelLayout& layout) {
  return absl::StrCat("tp ", layout.tp, " dp ", layout.dp, " ep ", layout.ep);
}

// The tables of the index-th sequence of a replica.
std::vector<kv::BlockId> Blocks(ModelRunner& runner, int32_t index) {
  const int32_t groups = runner.kv().layout().groups.count();
  EXPECT_LE(groups, kMostGroups);
  EXPECT_LT(index, kSequences);
  std::vector<kv::BlockId> blocks(static_cast<size_t>(groups * kBlocks));
  std::iota(blocks.begin(), blocks.end(), index * groups * kBlocks);
  return blocks;
}

bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

// A prompt under way, and behind it the tokens of the fixture.
struct Running {
  const GoldenPrompt* prompt = nullptr;
  size_t behind = 0;  // Tokens to be generated.
  int32_t replica = 0;
  std::vector<kv::BlockId> blocks;
  int32_t computed = 0;
  std::vector<float> logits;  // Of all positions so far.

  bool done() const { return computed == Total(); }
  int32_t Total() const { return static_cast<int32_t>(prompt->tokens.size() + behind) - 1; }
};

// Runs every prompt twice, on unlike replicas, and `behind` tokens behind each. They begin one
// after the other, so that prompt and generated rows meet, and replicas are without rows until it
// is their turn, or throughout.
std::vector<Running> RunAll(ModelRunner& runner, const std::vector<GoldenPrompt>& prompts,
                            size_t behind, int32_t dp) {
  const auto vocab = static_cast<size_t>(runner.spec().vocab_size);
  std::vector<Running> all;
  for (size_t s = 0; s < 2 * prompts.size(); ++s) {
    all.push_back({.prompt = &prompts[s % prompts.size()],
                   .behind = behind,
                   .replica = static_cast<int32_t>(s + s / prompts.size()) % dp,
                   .blocks = Blocks(runner, static_cast<int32_t>(s)),
                   .logits = {}});
  }
  for (size_t begun = 1; !std::ranges::all_of(all, &Running::done); ++begun) {
    std::vector<SequenceRows> batch;
    std::vector<Running*> stepped;
    for (Running& running : std::span(all).first(std::min(begun, all.size()))) {
      if (running.done()) continue;
      const auto in_prompt = static_cast<int32_t>(running.prompt->tokens.size());
      const bool decode = running.computed >= in_prompt;
      const std::span<const TokenId> tokens =
          decode ? std::span(running.prompt->greedy)
                       .subspan(static_cast<size_t>(running.computed - in_prompt), 1)
                 : std::span(running.prompt->tokens);
      batch.push_back({.tokens = tokens,
                       .start = running.computed,
                       .blocks = running.blocks,
                       .logits_rows = static_cast<int32_t>(tokens.size()),
                       .decode = decode,
                       .replica = running.replica});
      stepped.push_back(&running);
    }
    const absl::Status status = runner.Step(batch, nullptr);
    EXPECT_THAT(status, IsOk());
    if (!status.ok()) break;
    std::span<const float> logits = runner.logits();
    for (size_t i = 0; i < batch.size(); ++i) {
      const size_t count = batch[i].tokens.size() * vocab;
      stepped[i]->logits.insert(stepped[i]->logits.end(), logits.begin(),
                                logits.begin() + static_cast<ptrdiff_t>(count));
      stepped[i]->computed += static_cast<int32_t>(batch[i].tokens.size());
      logits = logits.subspan(count);
    }
    EXPECT_TRUE(logits.empty());
  }
  return all;
}

class GoldenReplicasTest : public ::testing::TestWithParam<const char*> {
 protected:
  std::string base() const { return GoldenVariantPath(GetParam()); }

  // Runs all prompts in all ways in which the model can be shared, and calls `compare` for the
  // logits of each prompt's positions.
  template <typename Compare>
  void ForEachLayout(DType dtype, size_t behind, const Compare& compare) {
    const std::vector<GoldenPrompt> prompts = LoadGoldenFixture(base());
    const ModelSpec spec = LoadModelSpec(base()).value();
    const std::vector<ParallelLayout> layouts =
        spec.has_moe() ? std::vector<ParallelLayout>{{1, 2, 2}, {1, 4, 4}, {2, 2, 4}, {2, 2, 2}}
                       : std::vector<ParallelLayout>{{1, 2, 1}, {2, 2, 1}};
    int ran = 0;
    for (const ParallelLayout& layout : layouts) {
      SCOPED_TRACE(Name(layout));
      const auto runner = RankGroupRunner::Load(Options(base(), dtype, layout));
      EXPECT_EQ(runner.status(), CheckLayout(spec, layout));
      if (!runner.ok()) continue;
      ++ran;
      const auto vocab = static_cast<size_t>(spec.vocab_size);
      const std::vector<Running> all = RunAll(**runner, prompts, behind, layout.dp);
      for (size_t s = 0; s < all.size(); ++s) {
        EXPECT_TRUE(SameBits(all[s].logits, all[s % prompts.size()].logits))
            << "prompt " << s % prompts.size() << " on replica " << all[s].replica;
        for (size_t p = 0; p * vocab < all[s].logits.size(); ++p) {
          compare(*all[s].prompt, p, std::span(all[s].logits).subspan(p * vocab, vocab));
        }
      }
    }
    EXPECT_GT(ran, 0);
  }
};

TEST_P(GoldenReplicasTest, AgreesWithTransformers) {
  ForEachLayout(DType::kF32, 24,
                [](const GoldenPrompt& prompt, size_t position, std::span<const float> logits) {
                  if (position < prompt.tokens.size()) {
                    ASSERT_LE(testing::RelativeDifference(prompt.full[position], logits),
                              kGoldenBoundF32);
                  }
                  if (position + 1 < prompt.tokens.size()) return;
                  const auto best = std::ranges::max_element(logits) - logits.begin();
                  ASSERT_EQ(best, prompt.greedy[position + 1 - prompt.tokens.size()])
                      << "position " << position;
                });
}

TEST_P(GoldenReplicasTest, InBf16TheDistributionIsTheirs) {
  ForEachLayout(DType::kBf16, 4,
                [](const GoldenPrompt& prompt, size_t position, std::span<const float> logits) {
                  if (position >= prompt.tokens.size()) return;
                  ASSERT_LE(testing::Divergence(prompt.full[position], logits),
                            kGoldenDivergenceBf16);
                });
}

INSTANTIATE_TEST_SUITE_P(Variants, GoldenReplicasTest, ::testing::ValuesIn(kGoldenVariants),
                         [](const auto& param) { return GoldenTestName(param.param); });

// How a sequence is run, and who shares its steps.
struct Schedule {
  int32_t replica = 0;
  int32_t chunk = 0;
  bool decode = false;
  std::vector<int32_t> companions = {};  // Their replicas.
};

struct Trace {
  std::vector<float> logits;  // Of every position.
  std::vector<std::byte> kv;  // Of every rank of its replica, layer by layer.
};

Trace RunSequence(RankGroupRunner& runner, const ParallelLayout& layout,
                  const std::vector<TokenId>& tokens, const Schedule& schedule) {
  const std::vector<kv::BlockId> blocks = Blocks(runner, 0);
  const std::vector<TokenId> other = {3, 7, 9, 3};
  const auto vocab = static_cast<size_t>(runner.spec().vocab_size);
  const auto total = static_cast<int32_t>(tokens.size());
  std::vector<std::vector<kv::BlockId>> other_blocks;
  for (size_t i = 0; i < schedule.companions.size(); ++i) {
    other_blocks.push_back(Blocks(runner, static_cast<int32_t>(i) + 1));
  }
  Trace trace;
  for (int32_t start = 0; start < total; start += schedule.chunk) {
    const int32_t count = std::min(schedule.chunk, total - start);
    std::vector<SequenceRows> batch;
    for (size_t i = 0; i < schedule.companions.size(); ++i) {
      batch.push_back({.tokens = other,
                       .start = start % 20,
                       .blocks = other_blocks[i],
                       .logits_rows = 1,
                       .replica = schedule.companions[i]});
    }
    // Behind half of them.
    const size_t before = batch.size() / 2;
    batch.insert(batch.begin() + static_cast<ptrdiff_t>(before),
                 {.tokens = std::span(tokens).subspan(static_cast<size_t>(start),
                                                      static_cast<size_t>(count)),
                  .start = start,
                  .blocks = blocks,
                  .logits_rows = count,
                  .decode = schedule.decode,
                  .replica = schedule.replica});
    EXPECT_THAT(runner.Step(batch, nullptr), IsOk());
    const auto own = runner.logits().subspan(before * vocab, static_cast<size_t>(count) * vocab);
    trace.logits.insert(trace.logits.end(), own.begin(), own.end());
  }
  const kv::KvGroups& groups = runner.kv().layout().groups;
  for (int32_t place = 0; place < layout.tp; ++place) {
    kv::KvArena& kv = runner.rank(static_cast<size_t>(schedule.replica * layout.tp + place)).kv();
    for (int32_t layer = 0; layer < runner.spec().layers; ++layer) {
      for (int64_t b = 0; b < kv::BlocksFor(total); ++b) {
        const int64_t at = groups.group_of(layer) * kBlocks + b;
        const auto bytes = kv.BlockLayerSpan(layer, blocks[static_cast<size_t>(at)]);
        trace.kv.insert(trace.kv.end(), bytes.begin(), bytes.end());
      }
    }
  }
  return trace;
}

TEST(ReplicasExactnessTest, LogitsAndKvBitsDependOnTheSequenceAlone) {
  for (const char* variant : {"qwen2-moe", "deepseek-v3-plain", "gpt-oss", "llama4"}) {
    for (const ParallelLayout& layout :
         {ParallelLayout{1, 2, 2}, ParallelLayout{2, 2, 4}, ParallelLayout{2, 2, 2}}) {
      SCOPED_TRACE(absl::StrCat(variant, " ", Name(layout)));
      const std::string base = GoldenVariantPath(variant);
      const auto runner = RankGroupRunner::Load(Options(base, DType::kBf16, layout));
      if (!CheckLayout(LoadModelSpec(base).value(), layout).ok()) continue;
      ASSERT_THAT(runner, IsOk());
      std::vector<TokenId> tokens;
      for (const GoldenPrompt& prompt : LoadGoldenFixture(base)) {
        tokens.insert(tokens.end(), prompt.tokens.begin(), prompt.tokens.end());
        tokens.insert(tokens.end(), prompt.greedy.begin(), prompt.greedy.end());
      }
      tokens.resize(90);
      const Trace whole = RunSequence(**runner, layout, tokens, {.replica = 0, .chunk = 90});
      for (const Schedule& schedule :
           {Schedule{.replica = 1, .chunk = 90},
            Schedule{.replica = 0, .chunk = 90, .companions = {1, 1, 0, 1}},
            Schedule{.replica = 1, .chunk = 13, .companions = {0, 1, 0}},
            Schedule{.replica = 0, .chunk = 1, .decode = true},
            Schedule{.replica = 1, .chunk = 1, .decode = true, .companions = {0, 0, 1, 1, 0, 1}}}) {
        const Trace trace = RunSequence(**runner, layout, tokens, schedule);
        EXPECT_TRUE(SameBits(trace.logits, whole.logits) && trace.kv == whole.kv)
            << "replica " << schedule.replica << " in chunks of " << schedule.chunk << " with "
            << schedule.companions.size() << " companions";
      }
    }
  }
}

}  // namespace
}  // namespace lynx::model
