#include "services/cli/eval/eval_data.h"

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/text/chat_template.h"
#include "common/text/tokenizer.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/temp_dir.h"

namespace lynx::cli {
namespace {

using ::lynx::testing::TempDir;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr char kModel[] = "models/lynx-tiny-moe";

class EvalDataTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto tokenizer = text::Tokenizer::Load(kModel);
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
    tokenizer_ = *std::move(tokenizer);
    auto chat_template = text::ChatTemplate::Load(kModel);
    ASSERT_TRUE(chat_template.ok()) << chat_template.status();
    chat_template_ = *std::move(chat_template);
  }

  absl::StatusOr<TextSet> Texts(int32_t per_domain = 100, int32_t min_tokens = 1) {
    return LoadTexts(dir_.path(), *tokenizer_, per_domain, min_tokens);
  }
  absl::StatusOr<TaskSet> Tasks(int32_t per_task = 100) {
    return LoadTasks(dir_.path(), *tokenizer_, *chat_template_, per_task);
  }
  std::vector<std::string> Decoded(const TextSet& set) {
    std::vector<std::string> texts;
    for (const TextWindow& window : set.windows) {
      texts.push_back(tokenizer_->Decode(window.tokens, /*skip_special=*/false));
    }
    return texts;
  }

  TempDir dir_;
  std::unique_ptr<text::Tokenizer> tokenizer_;
  std::unique_ptr<text::ChatTemplate> chat_template_;
};

TEST_F(EvalDataTest, WindowsTakeTurnsByDomain) {
  dir_.Write("text-a.jsonl",
             "{\"domain\":\"a\",\"text\":\"one\"}\n{\"domain\":\"a\",\"text\":\"two\"}\n"
             "{\"domain\":\"a\",\"text\":\"three\"}\n");
  dir_.Write("text-b.jsonl", "{\"domain\":\"b\",\"text\":\"four\",\"src\":\"x\"}");
  dir_.Write("other.jsonl", "not read");
  const auto set = Texts();
  ASSERT_TRUE(set.ok()) << set.status();
  EXPECT_THAT(set->domains, ElementsAre("a", "b"));
  EXPECT_THAT(Decoded(*set), ElementsAre("one", "four", "two", "three"));
  EXPECT_EQ(set->windows[1].domain, 1);
  EXPECT_THAT(Decoded(*Texts(/*per_domain=*/2)), ElementsAre("one", "four", "two"));
}

TEST_F(EvalDataTest, ShortWindowsAreLeftOutAndCounted) {
  dir_.Write("text-a.jsonl",
             "{\"domain\":\"a\",\"text\":\"x\"}\n"
             "{\"domain\":\"a\",\"text\":\"The quick brown fox jumps over the dog.\"}\n");
  const auto set = Texts(/*per_domain=*/1, /*min_tokens=*/5);
  ASSERT_TRUE(set.ok()) << set.status();
  EXPECT_THAT(Decoded(*set), ElementsAre("The quick brown fox jumps over the dog."));
  EXPECT_EQ(set->too_short, 1);
}

TEST_F(EvalDataTest, TasksAreChatsThatEndWhereTheAnswerBegins) {
  dir_.Write("task-sum.jsonl", "{\"task\":\"sum\",\"prompt\":\"1+1=\",\"answer\":\"2\"}\n");
  const auto set = Tasks();
  ASSERT_TRUE(set.ok()) << set.status();
  ASSERT_EQ(set->items.size(), 1u);
  EXPECT_EQ(set->items[0].answer, "2");
  EXPECT_EQ(tokenizer_->Decode(set->items[0].prompt, /*skip_special=*/false),
            "<|im_start|>user\n1+1=<|im_end|>\n<|im_start|>assistant\n");
}

TEST_F(EvalDataTest, BadLinesAreNamedByFileAndLine) {
  struct Case {
    std::string line;
    std::string what;
  };
  const std::string good = "{\"task\":\"t\",\"prompt\":\"p\",\"answer\":\"a\"}\n";
  for (const Case& c : {Case{"{\"task\":", ""}, Case{"", ""}, Case{"[1]", "not a JSON object"},
                        Case{"{\"task\":\"t\",\"prompt\":\"p\"}", "\"answer\""},
                        Case{"{\"task\":\"t\",\"prompt\":\"p\",\"answer\":7}", "\"answer\""},
                        Case{"{\"task\":\"t\",\"prompt\":\"p\",\"answer\":\"\"}", "is empty"},
                        Case{std::string(100, '['), "deep"},
                        Case{"{\"task\":\"t\",\"prompt\":\"\xff\",\"answer\":\"a\"}", ""}}) {
    SCOPED_TRACE(c.line);
    dir_.Write("task-t.jsonl", good + c.line + "\n" + good);
    const absl::Status status = Tasks().status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), HasSubstr("task-t.jsonl:2: "));
    EXPECT_THAT(std::string(status.message()), HasSubstr(c.what));
  }
}

TEST_F(EvalDataTest, MissingDataIsNamed) {
  EXPECT_EQ(Texts().status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(Texts().status().message()), HasSubstr("text-*.jsonl"));
  const auto set = LoadTexts(dir_.path() / "nowhere", *tokenizer_, 1, 1);
  EXPECT_EQ(set.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(set.status().message()), HasSubstr("nowhere"));
}

}  // namespace
}  // namespace lynx::cli
