#include "tests/golden/golden_compare.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <numeric>

#include "common/model/model_spec.h"
#include "gtest/gtest.h"
#include "tests/support/status_matchers.h"

namespace lynx::testing {

std::vector<kv::BlockId> Blocks(model::ModelRunner& runner, int32_t first, int32_t count) {
  const int32_t groups = runner.kv().layout().groups.count();
  EXPECT_LE(groups, kMostGroups);
  std::vector<kv::BlockId> blocks(static_cast<size_t>(groups * count));
  std::iota(blocks.begin(), blocks.end(), first * groups);
  return blocks;
}

Comparison CompareLogits(model::ModelRunner& runner, std::span<const GoldenPrompt> prompts) {
  const auto vocab = static_cast<size_t>(runner.spec().vocab_size);
  const std::vector<kv::BlockId> blocks = Blocks(runner, 0, kKvBlocks);
  Comparison result;
  for (const GoldenPrompt& prompt : prompts) {
    const model::SequenceRows rows{.tokens = prompt.tokens,
                                   .blocks = blocks,
                                   .logits_rows = static_cast<int32_t>(prompt.tokens.size())};
    EXPECT_THAT(runner.Step({&rows, 1}, nullptr), IsOk());
    const std::span<const float> logits = runner.logits();
    for (size_t p = 0; p < prompt.tokens.size(); ++p) {
      const auto row = logits.subspan(p * vocab, vocab);
      double worst = 0;
      auto compare = [&](size_t id, float want) {
        const double difference = std::abs(double{row[id]} - want) / prompt.largest[p];
        worst = std::isnan(difference) ? INFINITY : std::max(worst, difference);
      };
      for (size_t i = 0; i < prompt.top[p].size(); ++i) {
        compare(static_cast<size_t>(prompt.top_ids[p][i]), prompt.top[p][i]);
      }
      const auto full = std::ranges::find(prompt.full_positions, static_cast<int32_t>(p));
      if (full != prompt.full_positions.end()) {
        const auto i = static_cast<size_t>(full - prompt.full_positions.begin());
        for (size_t v = 0; v < vocab; ++v) compare(v, prompt.full[i][v]);
        result.worst_kl = std::max(result.worst_kl, Divergence(prompt.full[i], row));
      }
      result.differences.push_back(worst);
      const auto best = std::max_element(row.begin(), row.end()) - row.begin();
      result.same_best += best == prompt.top_ids[p][0] ? 1 : 0;
    }
  }
  std::ranges::sort(result.differences);
  std::printf(
      "relative difference: worst %.3g, median %.3g; KL at most %.3g; same best token at "
      "%zu of %zu\n",
      result.worst(), result.median(), result.worst_kl, static_cast<size_t>(result.same_best),
      result.differences.size());
  return result;
}

int64_t CompareGreedy(model::ModelRunner& runner, std::span<const GoldenPrompt> prompts,
                      double bound, size_t most_tokens) {
  const std::vector<kv::BlockId> blocks = Blocks(runner, 0, kKvBlocks);
  int64_t compared = 0;
  int64_t parted = 0;
  for (const GoldenPrompt& prompt : prompts) {
    std::vector<TokenId> next = prompt.tokens;
    int32_t position = 0;
    for (size_t i = 0; i < std::min(prompt.greedy.size(), most_tokens); ++i) {
      const model::SequenceRows rows{
          .tokens = next, .start = position, .blocks = blocks, .logits_rows = 1, .decode = i > 0};
      EXPECT_THAT(runner.Step({&rows, 1}, nullptr), IsOk());
      position += static_cast<int32_t>(next.size());
      const std::span<const float> logits = runner.logits();
      const auto best = std::max_element(logits.begin(), logits.end()) - logits.begin();
      ++compared;
      if (best != prompt.greedy[i]) {
        EXPECT_LT(prompt.greedy_gaps[i], bound)
            << "token " << i << " after a prompt of " << prompt.tokens.size();
        ++parted;
        break;
      }
      next = {prompt.greedy[i]};
    }
  }
  std::printf("%zu greedy tokens compared, %zu continuations parted\n",
              static_cast<size_t>(compared), static_cast<size_t>(parted));
  return parted;
}

}  // namespace lynx::testing
