#include <memory>
#include <string>
#include <vector>

#include "common/text/tokenizer.h"
#include "gtest/gtest.h"
#include "services/cli/eval/task_eval.h"

namespace lynx::cli {
namespace {

using Verdict = AnswerCheck::Verdict;

constexpr TokenId kEnd = 4095;

class AnswerCheckTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto tokenizer = text::Tokenizer::Load("models/lynx-tiny-moe");
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
    tokenizer_ = *std::move(tokenizer);
  }

  // The verdict on a model that says `said` and then ends.
  Verdict Judge(const std::string& answer, const std::string& said) {
    const std::vector<TokenId> stops = {kEnd};
    const AnswerFormat format{.tokenizer = *tokenizer_, .stop_tokens = stops};
    AnswerCheck check(format, answer);
    auto tokens = tokenizer_->Encode(said, /*add_special_tokens=*/false);
    EXPECT_TRUE(tokens.ok());
    EXPECT_LT(tokens->size(), static_cast<size_t>(AnswerCheck::MaxTokens(answer)) + said.size());
    for (TokenId token : *tokens) {
      if (check.Push(token) == Verdict::kWrong) return Verdict::kWrong;
    }
    return check.Push(kEnd);
  }

  std::unique_ptr<text::Tokenizer> tokenizer_;
};

TEST_F(AnswerCheckTest, OnlyTheWholeAnswerAndThenTheEndIsRight) {
  EXPECT_EQ(Judge("1700", "1700"), Verdict::kRight);
  EXPECT_EQ(Judge("1700", "170"), Verdict::kWrong);
  EXPECT_EQ(Judge("1700", "17000"), Verdict::kWrong);
  EXPECT_EQ(Judge("1700", "1701"), Verdict::kWrong);
  EXPECT_EQ(Judge("1700", ""), Verdict::kWrong);
  EXPECT_EQ(Judge("a b c", "a b c"), Verdict::kRight);
}

TEST_F(AnswerCheckTest, CharactersMayTakeSeveralTokens) {
  EXPECT_EQ(Judge("na\u00efve \u6f22\U0001F600", "na\u00efve \u6f22\U0001F600"), Verdict::kRight);
  EXPECT_EQ(Judge("\u6f22", "\u6f23"), Verdict::kWrong);
}

TEST_F(AnswerCheckTest, AWrongStartEndsItAtOnceAndEndlessNothingToo) {
  const std::vector<TokenId> stops = {kEnd};
  const AnswerFormat format{.tokenizer = *tokenizer_, .stop_tokens = stops};
  const std::string answer = "17";
  AnswerCheck wrong(format, answer);
  EXPECT_EQ(wrong.Push(*tokenizer_->TokenToId("2")), Verdict::kWrong);

  AnswerCheck silent(format, answer);  // A special token adds no text.
  for (int32_t i = 1; i < AnswerCheck::MaxTokens(answer); ++i) {
    EXPECT_EQ(silent.Push(4094), Verdict::kOpen);
  }
  EXPECT_EQ(silent.Push(4094), Verdict::kWrong);
}

}  // namespace
}  // namespace lynx::cli
