#include "common/text/model_files.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_dir.h"

namespace lynx::text {
namespace {

using ::lynx::testing::IsOk;
using ::lynx::testing::StatusIs;
using ::lynx::testing::TempDir;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class StopTokenIdsTest : public ::testing::Test {
 protected:
  StopTokenIdsTest() : tokenizer_(Tokenizer::Load("models/lynx-tiny-moe").value()) {}

  absl::StatusOr<std::vector<int32_t>> Load() const {
    return LoadStopTokenIds(dir_.path(), *tokenizer_);
  }

  TempDir dir_;
  std::unique_ptr<Tokenizer> tokenizer_;
};

TEST_F(StopTokenIdsTest, AllThreeFilesCount) {
  dir_.Write("config.json", R"({"eos_token_id": 2})");
  dir_.Write("generation_config.json", R"({"eos_token_id": [2, 9]})");
  dir_.Write("tokenizer_config.json", R"({"eos_token": "<|im_end|>"})");
  EXPECT_THAT(Load().value(), ElementsAre(2, 9, 4095));
}

TEST_F(StopTokenIdsTest, AnyFileMayBeMissingOrSilent) {
  EXPECT_THAT(Load().value(), IsEmpty());
  dir_.Write("config.json", R"({"text_config": {"eos_token_id": [7]}, "eos_token_id": null})");
  EXPECT_THAT(Load().value(), ElementsAre(7));
  dir_.Write("tokenizer_config.json",
             R"({"eos_token": {"content": "<|endoftext|>", "special": true}})");
  EXPECT_THAT(Load().value(), ElementsAre(7, 4093));
}

TEST_F(StopTokenIdsTest, NonsenseIsNamed) {
  dir_.Write("generation_config.json", R"({"eos_token_id": 2, "eos_token_id": 3})");
  EXPECT_THAT(Load(), StatusIs(absl::StatusCode::kInvalidArgument,
                               HasSubstr("generation_config.json: key 'eos_token_id' occurs")));
  dir_.Write("generation_config.json", "{}");
  dir_.Write("config.json", R"({"eos_token_id": "2"})");
  EXPECT_THAT(Load(), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("config.json")));
  dir_.Write("config.json", R"({"eos_token_id": -2})");
  EXPECT_THAT(Load(), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("-2")));
  dir_.Write("config.json", "{}");
  dir_.Write("tokenizer_config.json", R"({"eos_token": "<nope>"})");
  EXPECT_THAT(Load(), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("<nope>")));
}

TEST(DemoModelTest, StopsAtBothEndTokensAndDecodesGreedily) {
  const auto tokenizer = Tokenizer::Load("models/lynx-tiny-moe").value();
  EXPECT_THAT(LoadStopTokenIds("models/lynx-tiny-moe", *tokenizer).value(),
              ElementsAre(4093, 4095));
  EXPECT_EQ(LoadGenerationDefaults("models/lynx-tiny-moe").value().do_sample, false);
}

TEST(GenerationDefaultsTest, ReadsWhatIsThereAndNothingElse) {
  TempDir dir;
  EXPECT_EQ(LoadGenerationDefaults(dir.path()).value().temperature, std::nullopt);
  dir.Write("generation_config.json",
            R"({"do_sample": true, "temperature": 0.6, "top_p": 0.95, "top_k": 20})");
  const GenerationDefaults defaults = LoadGenerationDefaults(dir.path()).value();
  EXPECT_EQ(defaults.do_sample, true);
  EXPECT_EQ(defaults.temperature, 0.6);
  EXPECT_EQ(defaults.top_p, 0.95);
  EXPECT_EQ(defaults.top_k, 20);
  EXPECT_EQ(defaults.repetition_penalty, std::nullopt);
}

TEST(GenerationDefaultsTest, WrongTypesAndRangesAreNamed) {
  TempDir dir;
  for (const auto& [text, name] : std::vector<std::pair<std::string, std::string>>{
           {R"({"temperature": -1})", "temperature"},
           {R"({"top_p": 1.5})", "top_p"},
           {R"({"top_k": -3})", "top_k"},
           {R"({"top_k": 1.5})", "top_k"},
           {R"({"do_sample": 1})", "do_sample"},
           {R"({"temperature": "hot"})", "temperature"},
           {"[" + std::string(5000, '['), "too deep"}}) {
    dir.Write("generation_config.json", text);
    EXPECT_THAT(LoadGenerationDefaults(dir.path()),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(name)));
  }
}

}  // namespace
}  // namespace lynx::text
