// Experts whose number the ranks do not divide, and routers that send everything to few of them.
#include <algorithm>
#include <cmath>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/model/model_runner.h"
#include "gtest/gtest.h"
#include "tests/support/rank_group_runner.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_model.h"

namespace lynx::model {
namespace {

using ::lynx::testing::IsOk;
using ::lynx::testing::RankGroupRunner;
using ::lynx::testing::TempDir;
using ::lynx::testing::TinyModel;

const std::vector<TokenId> kPrompt = {5, 17, 60, 0, 3, 3, 41, 8, 22, 9, 1, 2, 50, 33};
const std::vector<kv::BlockId> kBlocks = {3, 1};

struct Trace {
  std::vector<TokenId> tokens;
  std::vector<std::vector<float>> logits;
};

// Greedy tokens behind the prompt, and the logits that they were taken from.
Trace Generate(ModelRunner& runner) {
  Trace trace;
  SequenceRows rows{.tokens = kPrompt, .blocks = kBlocks, .logits_rows = 1};
  TokenId last = 0;
  for (int32_t i = 0; i < 12; ++i) {
    EXPECT_THAT(runner.Step({&rows, 1}, nullptr), IsOk());
    const auto logits = runner.logits();
    trace.logits.emplace_back(logits.begin(), logits.end());
    last = static_cast<TokenId>(std::ranges::max_element(logits) - logits.begin());
    trace.tokens.push_back(last);
    rows = {.tokens = {&last, 1},
            .start = static_cast<int32_t>(kPrompt.size()) + i,
            .blocks = kBlocks,
            .logits_rows = 1,
            .decode = true};
  }
  return trace;
}

TEST(RankExpertsTest, UnevenPartsComputeWhatASingleRankDoes) {
  struct Case {
    int experts;
    int heads;
    int kv_heads;
    std::vector<ParallelLayout> layouts;
  };
  const Case cases[] = {
      {6, 4, 2, {{2, 1, 1}, {2, 1, 2}, {4, 1, 2}, {4, 1, 4}}},
      {7, 4, 2, {{2, 1, 1}, {2, 1, 2}, {4, 1, 2}, {4, 1, 4}, {2, 2, 4}, {2, 2, 2}, {1, 2, 1}}},
      {40, 6, 3, {{3, 1, 3}, {1, 3, 3}}},
      {60, 8, 2, {{8, 1, 8}, {1, 8, 8}, {2, 4, 8}}}};
  for (const auto& [experts, heads, kv_heads, layouts] : cases) {
    for (const bool all_to_the_first : {false, true}) {
      TinyModel model = TinyModel::Make(
          {.dtype = DType::kF32, .experts = experts, .heads = heads, .kv_heads = kv_heads});
      if (all_to_the_first) {
        // Equal scores: the lowest experts win for every token, and most ranks compute nothing.
        for (auto& [name, tensor] : model.tensors) {
          if (name.ends_with("mlp.gate.weight")) std::ranges::fill(tensor.values, 0.f);
        }
      }
      TempDir dir;
      model.Write(dir.path());
      RunnerOptions options = {.model_dir = dir.path(),
                               .compute_dtype = DType::kF32,
                               .kv_dtype = DType::kF32,
                               .kv_blocks = 4,
                               .max_step_rows = 40,
                               .max_step_logits = 40,
                               .threads = 1};
      auto single = ModelRunner::Load(options);
      ASSERT_THAT(single, IsOk());
      const Trace want = Generate(**single);
      for (const ParallelLayout& layout : layouts) {
        SCOPED_TRACE(absl::StrCat(experts, " experts, tp ", layout.tp, " dp ", layout.dp, " ep ",
                                  layout.ep, all_to_the_first ? ", all to the first" : ""));
        options.layout = layout;
        auto ranks = RankGroupRunner::Load(options);
        ASSERT_THAT(ranks, IsOk());
        const Trace got = Generate(**ranks);
        EXPECT_EQ(got.tokens, want.tokens);
        for (size_t step = 0; step < want.logits.size(); ++step) {
          float largest = 0;
          float differs = 0;
          for (size_t i = 0; i < want.logits[step].size(); ++i) {
            largest = std::max(largest, std::abs(want.logits[step][i]));
            differs = std::max(differs, std::abs(want.logits[step][i] - got.logits[step][i]));
          }
          EXPECT_LE(differs, 1e-5f * largest) << "step " << step;
        }
      }
    }
  }
}

}  // namespace
}  // namespace lynx::model
