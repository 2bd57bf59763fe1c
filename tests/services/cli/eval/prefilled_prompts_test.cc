#include "services/cli/eval/prefilled_prompts.h"

#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "common/model/model_runner.h"
#include "gtest/gtest.h"

namespace lynx::cli {
namespace {

std::vector<TokenId> Tokens(int32_t first, int32_t count) {
  std::vector<TokenId> tokens;
  for (int32_t i = 0; i < count; ++i) tokens.push_back((first + i * 37) % 4096);
  return tokens;
}

TEST(PrefilledPromptsTest, HowPromptsShareStepsChangesNothing) {
  const std::vector<std::vector<TokenId>> tokens = {
      Tokens(5, 20), Tokens(9, 3), {}, Tokens(100, 7), Tokens(7, 1)};
  auto runner = model::ModelRunner::Load({.model_dir = "models/lynx-tiny-moe",
                                          .kv_blocks = 16,
                                          .max_step_rows = 64,
                                          .max_step_logits = 8,
                                          .threads = 2});
  ASSERT_TRUE(runner.ok()) << runner.status();
  kv::BlockPool pool(16);
  std::vector<PrefilledPrompts::Prompt> prompts;
  for (const auto& prompt : tokens) prompts.push_back({.tokens = prompt, .room = 13});

  std::vector<TokenId> want;
  for (const auto& [rows, logits] :
       std::vector<std::pair<int32_t, int32_t>>{{64, 8}, {64, 1}, {7, 8}, {1, 1}}) {
    SCOPED_TRACE(rows);
    const EvalModel model{
        .runner = **runner, .pool = pool, .max_step_rows = rows, .max_step_logits = logits};
    const auto filled = PrefilledPrompts::Create(model, prompts);
    ASSERT_TRUE(filled.ok()) << filled.status();
    std::vector<TokenId> got;
    for (size_t i = 0; i < prompts.size(); ++i) got.push_back(filled->first_token(i));
    if (want.empty()) want = got;
    EXPECT_EQ(got, want);
    EXPECT_EQ(filled->blocks(0).size(), 3u) << "20 and 13 tokens";
  }
  EXPECT_EQ(pool.free_blocks(), 16);
}

TEST(PrefilledPromptsTest, AFullPoolIsSaid) {
  auto runner = model::ModelRunner::Load({.model_dir = "models/lynx-tiny-moe",
                                          .kv_blocks = 2,
                                          .max_step_rows = 64,
                                          .max_step_logits = 8,
                                          .threads = 1});
  ASSERT_TRUE(runner.ok()) << runner.status();
  kv::BlockPool pool(2);
  const std::vector<TokenId> tokens = Tokens(1, 20);
  const PrefilledPrompts::Prompt prompt{.tokens = tokens, .room = 1};
  const EvalModel model{
      .runner = **runner, .pool = pool, .max_step_rows = 64, .max_step_logits = 8};
  EXPECT_EQ(PrefilledPrompts::Create(model, std::vector{prompt, prompt}).status().code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(pool.free_blocks(), 2);
}

}  // namespace
}  // namespace lynx::cli
