// Steps of decode and prompt rows on the demo model: who is remapped, and what that changes.
#include <memory>
#include <random>
#include <vector>

#include "common/model/model_runner.h"
#include "common/model/model_spec.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/status_matchers.h"

namespace lynx::model {
namespace {

using ::lynx::testing::IsOk;

constexpr int32_t kDecodeRows = 6;
constexpr int32_t kPrompt = 20;
constexpr moe::Policy kHarsh{
    .kind = moe::Policy::Kind::kVote, .floor = 0, .experts = 9};  // 9 of 64 experts.

struct Outcome {
  std::vector<float> logits;  // Of the decode rows, then of the prompt's rows.
  StepStats stats;
};

// Decode rows with `policy` in a step that also computes a prompt. All have the same history every
// time.
Outcome MixedStep(const moe::Policy* policy, bool remap_mixed_steps) {
  auto runner = ModelRunner::Load({.model_dir = "models/lynx-tiny-moe",
                                   .kv_blocks = 32,
                                   .max_step_rows = 64,
                                   .max_step_logits = 64,
                                   .threads = 1,
                                   .remap_mixed_steps = remap_mixed_steps});
  EXPECT_THAT(runner, IsOk());
  std::mt19937 rng(20240302);
  const auto draw = [&](int32_t count) {
    std::vector<TokenId> tokens;
    for (int32_t i = 0; i < count; ++i) tokens.push_back(static_cast<TokenId>(rng() % 4000));
    return tokens;
  };
  std::vector<std::vector<TokenId>> histories;
  std::vector<std::vector<kv::BlockId>> blocks;
  std::vector<SequenceRows> step;
  for (int32_t i = 0; i < kDecodeRows; ++i) {
    histories.push_back(draw(8));
    blocks.push_back({2 * i, 2 * i + 1});
  }
  for (size_t i = 0; i < histories.size(); ++i) {
    step.push_back({.tokens = std::span(histories[i]).first(7), .blocks = blocks[i]});
  }
  EXPECT_THAT((*runner)->Step(step, nullptr), IsOk());
  step.clear();
  for (size_t i = 0; i < histories.size(); ++i) {
    step.push_back({.tokens = std::span(histories[i]).last(1),
                    .start = 7,
                    .blocks = blocks[i],
                    .logits_rows = 1,
                    .decode = true,
                    .policy = policy});
  }
  const std::vector<TokenId> prompt = draw(kPrompt);
  const std::vector<kv::BlockId> prompt_blocks = {30, 31};
  // A policy on prompt rows has no effect.
  step.push_back(
      {.tokens = prompt, .blocks = prompt_blocks, .logits_rows = kPrompt, .policy = policy});
  EXPECT_THAT((*runner)->Step(step, nullptr), IsOk());
  const auto logits = (*runner)->logits();
  return {{logits.begin(), logits.end()}, (*runner)->stats()};
}

int32_t Remapped(const StepStats& stats) {
  int32_t remapped = 0;
  for (const moe::PlanStats& plan : stats.plans) remapped += plan.remapped;
  return remapped;
}

TEST(MixedStepTest, IsExactUnlessAskedOtherwise) {
  const Outcome exact = MixedStep(nullptr, false);
  const Outcome lossy = MixedStep(&kHarsh, false);
  EXPECT_EQ(lossy.logits, exact.logits);
  EXPECT_EQ(Remapped(lossy.stats), 0);
  EXPECT_EQ(lossy.stats.phase, moe::Phase::kMixed);
  EXPECT_EQ(lossy.stats.decode_rows, kDecodeRows);
  EXPECT_EQ(lossy.stats.prefill_rows, kPrompt);
  EXPECT_EQ(lossy.stats.expert_bytes_saved, 0);
  for (const moe::PlanStats& plan : lossy.stats.plans) {
    EXPECT_EQ(plan.bypass, moe::Bypass::kPhase);
  }
}

TEST(MixedStepTest, DecodeRowsGoWhereThePromptGoesAnyway) {
  const Outcome exact = MixedStep(nullptr, true);
  EXPECT_EQ(Remapped(exact.stats), 0) << "no row has a policy";
  const Outcome lossy = MixedStep(&kHarsh, true);
  EXPECT_GT(Remapped(lossy.stats), 0);
  const size_t vocabulary = exact.logits.size() / (kDecodeRows + kPrompt);
  const size_t decode = kDecodeRows * vocabulary;
  EXPECT_NE(std::vector(lossy.logits.begin(), lossy.logits.begin() + decode),
            std::vector(exact.logits.begin(), exact.logits.begin() + decode));
  EXPECT_EQ(std::vector(lossy.logits.begin() + decode, lossy.logits.end()),
            std::vector(exact.logits.begin() + decode, exact.logits.end()))
      << "prompt rows keep their bits";
  EXPECT_GT(lossy.stats.expert_bytes_saved, 0);
}

}  // namespace
}  // namespace lynx::model
