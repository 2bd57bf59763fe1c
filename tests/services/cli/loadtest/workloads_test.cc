#include "services/cli/loadtest/workloads.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/status_matchers.h"

namespace lynx::loadtest {
namespace {

using Json = nlohmann::json;
using ::lynx::testing::IsOk;
using ::lynx::testing::StatusIs;
using ::testing::HasSubstr;
using ::testing::SizeIs;
using ::testing::StartsWith;

RequestBody MakeBody(Endpoint endpoint = Endpoint::kChat, const std::string& extra = "") {
  RequestBody::Options options;
  options.endpoint = endpoint;
  options.model = "m\"x";
  options.extra = extra;
  return RequestBody::Create(options).value();
}

std::vector<std::string> Words(const std::string& body) {
  return absl::StrSplit(Json::parse(body)["messages"][0]["content"].get<std::string>(), ' ');
}

size_t SharedWords(const std::vector<std::string>& a, const std::vector<std::string>& b) {
  return static_cast<size_t>(std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first -
                             a.begin());
}

TEST(RequestBodyTest, AsksForAStreamOfAFixedLength) {
  const Json chat = Json::parse(MakeBody().Streamed(PlainPrompt("hi \"you\"", Endpoint::kChat), 9));
  EXPECT_EQ(chat["model"], "m\"x");
  EXPECT_EQ(chat["messages"], Json::parse(R"([{"role":"user","content":"hi \"you\""}])"));
  EXPECT_EQ(chat["max_tokens"], 9);
  EXPECT_EQ(chat["min_tokens"], 9);
  EXPECT_EQ(chat["ignore_eos"], true);
  EXPECT_EQ(chat["stream"], true);
  EXPECT_EQ(chat["stream_options"], Json::parse(R"({"include_usage":true})"));
  const Json plain = Json::parse(MakeBody(Endpoint::kCompletions, R"({"lynx":{"policy":"exact"}})")
                                     .Streamed(PlainPrompt("hi", Endpoint::kCompletions), 1));
  EXPECT_EQ(plain["prompt"], "hi");
  EXPECT_EQ(plain["lynx"]["policy"], "exact");
}

TEST(RequestBodyTest, RefusesExtraFieldsThatClash) {
  for (const char* extra : {"[]", "{", R"({"model":"x"})", R"({"stream":false})"}) {
    RequestBody::Options options;
    options.extra = extra;
    EXPECT_THAT(RequestBody::Create(options), StatusIs(absl::StatusCode::kInvalidArgument))
        << extra;
  }
}

SyntheticOptions Synthetic() {
  SyntheticOptions options;
  options.arrivals.rate = 5;
  options.input = Lengths::Parse("100").value();
  options.output = Lengths::Parse("uniform:5,50").value();
  options.seed = 3;
  return options;
}

TEST(SyntheticWorkloadTest, IsAFunctionOfItsSeed) {
  const auto plan = [](uint64_t seed) {
    SyntheticOptions options = Synthetic();
    options.seed = seed;
    const auto workload = MakeSyntheticWorkload(options, MakeBody());
    std::string all;
    for (int i = 0; i < 20; ++i) {
      const auto request = workload->Next();
      all += absl::FormatDuration(request->due) + workload->Body();
    }
    return all;
  };
  EXPECT_EQ(plan(3), plan(3));
  EXPECT_NE(plan(3), plan(4));
}

TEST(SyntheticWorkloadTest, PromptsHaveTheWantedLengthAndNothingInCommon) {
  SyntheticOptions options = Synthetic();
  options.scale = {.fixed = 10, .per_word = 1.5};
  const auto workload = MakeSyntheticWorkload(options, MakeBody());
  std::set<std::string> starts;
  for (int i = 0; i < 50; ++i) {
    const auto request = workload->Next();
    EXPECT_EQ(request->index, i);
    EXPECT_EQ(request->input_tokens, 100);
    EXPECT_GE(request->output_tokens, 5);
    EXPECT_LE(request->output_tokens, 50);
    const std::vector<std::string> words = Words(workload->Body());
    EXPECT_THAT(words, SizeIs(60)) << "(100 - 10) / 1.5";
    starts.insert(words[0] + words[1] + words[2]);
  }
  EXPECT_GE(starts.size(), 49u);
}

TEST(SyntheticWorkloadTest, GroupsShareTheirPrefixAndNoMore) {
  SyntheticOptions options = Synthetic();
  options.prefix_tokens = 40;
  options.prefix_groups = 3;
  const auto workload = MakeSyntheticWorkload(options, MakeBody());
  std::set<std::vector<std::string>> prefixes;
  std::set<std::vector<std::string>> rests;
  for (int i = 0; i < 60; ++i) {
    workload->Next();
    const std::vector<std::string> words = Words(workload->Body());
    ASSERT_THAT(words, SizeIs(100));
    prefixes.insert({words.begin(), words.begin() + 40});
    rests.insert({words.begin() + 40, words.begin() + 50});
  }
  EXPECT_THAT(prefixes, SizeIs(3));
  EXPECT_THAT(rests, SizeIs(60));
}

TEST(TraceWorkloadTest, PromptsShareExactlyTheBlocksOfEqualIds) {
  Trace trace;
  trace.requests = {
      {.at = absl::Seconds(0), .input_tokens = 250, .output_tokens = 7, .hash_ids = {1, 2, 3}},
      {.at = absl::Seconds(4), .input_tokens = 260, .output_tokens = 8, .hash_ids = {1, 2, 4}},
      {.at = absl::Seconds(6), .input_tokens = 150, .output_tokens = 9, .hash_ids = {1}},
      {.at = absl::Seconds(7), .input_tokens = 250, .output_tokens = 9, .hash_ids = {5, 2, 3}}};
  TraceOptions options;
  options.speed = 2;
  options.block_tokens = 100;
  const auto workload = MakeTraceWorkload(options, trace, MakeBody());
  std::vector<std::vector<std::string>> prompts;
  std::vector<absl::Duration> due;
  while (const auto request = workload->Next()) {
    prompts.push_back(Words(workload->Body()));
    due.push_back(request->due);
  }
  EXPECT_THAT(due, ::testing::ElementsAre(absl::ZeroDuration(), absl::Seconds(2), absl::Seconds(3),
                                          absl::Seconds(3.5)));
  ASSERT_THAT(prompts, SizeIs(4));
  EXPECT_THAT(prompts[0], SizeIs(250));
  EXPECT_THAT(prompts[2], SizeIs(150));
  // A word more may be equal by chance.
  EXPECT_NEAR(static_cast<double>(SharedWords(prompts[0], prompts[1])), 200, 2);
  EXPECT_GE(SharedWords(prompts[0], prompts[1]), 200u);
  EXPECT_NEAR(static_cast<double>(SharedWords(prompts[0], prompts[2])), 100, 2);
  EXPECT_LE(SharedWords(prompts[0], prompts[3]), 2u) << "the first block differs";
}

TEST(TraceWorkloadTest, LengthsScaleWithTheirBlocks) {
  Trace trace;
  trace.requests = {{.at = {}, .input_tokens = 3000, .output_tokens = 400, .hash_ids = {1, 2, 3}},
                    {.at = {}, .input_tokens = 2500, .output_tokens = 4, .hash_ids = {1, 2}}};
  TraceOptions options;
  options.length_scale = 0.1;
  options.block_tokens = 1000;
  const auto workload = MakeTraceWorkload(options, trace, MakeBody());
  EXPECT_EQ(workload->Next()->output_tokens, 40);
  const auto first = Words(workload->Body());
  EXPECT_EQ(workload->Next()->output_tokens, 1) << "never none";
  const auto second = Words(workload->Body());
  EXPECT_THAT(first, SizeIs(300));
  EXPECT_THAT(second, SizeIs(250));
  EXPECT_GE(SharedWords(first, second), 200u);
  EXPECT_LE(SharedWords(first, second), 202u);
}

TEST(PromptFileTest, ReadsPromptsAndMessages) {
  const auto prompts = ParsePrompts(
      "{\"prompt\": \"a\\nb\", \"max_tokens\": 5}\n\n"
      "{\"messages\": [{\"role\": \"system\", \"content\": \"s\"}], \"id\": 3}\n",
      "p", Endpoint::kChat);
  ASSERT_THAT(prompts, IsOk());
  ASSERT_THAT(*prompts, SizeIs(2));
  EXPECT_EQ((*prompts)[0].max_tokens, 5);
  EXPECT_EQ(Json::parse((*prompts)[0].json)[0]["content"], "a\nb");
  EXPECT_EQ(Json::parse((*prompts)[1].json)[0]["role"], "system");
  const auto plain = ParsePrompts("{\"prompt\":\"x\"}", "p", Endpoint::kCompletions);
  ASSERT_THAT(plain, IsOk());
  EXPECT_EQ((*plain)[0].json, "\"x\"");
}

TEST(PromptFileTest, MalformedLinesAreNamedWithTheirPlace) {
  struct Case {
    const char* text;
    const char* where;
  };
  for (const Case& c :
       {Case{"\n", "p: "}, Case{"{\"prompt\":\"x\"}\nno\n", "p:2:2: "},
        Case{"{\"text\":\"x\"}", "p:1:1: "}, Case{"{\"prompt\":\"x\",\"messages\":[]}", "p:1:1: "},
        Case{"{\"prompt\":4}", "p:1:2: "}, Case{"{\"messages\":[]}", "p:1:2: "},
        Case{"{\"prompt\":\"x\",\"max_tokens\":0}", "p:1:15: "}}) {
    EXPECT_THAT(ParsePrompts(c.text, "p", Endpoint::kChat),
                StatusIs(absl::StatusCode::kInvalidArgument, StartsWith(c.where)))
        << c.text;
  }
  EXPECT_THAT(ParsePrompts("{\"messages\":[{}]}", "p", Endpoint::kCompletions),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("--endpoint chat")));
}

TEST(PromptWorkloadTest, TakesPromptsInTurn) {
  std::vector<Prompt> prompts = {PlainPrompt("a", Endpoint::kChat),
                                 PlainPrompt("b", Endpoint::kChat)};
  prompts[1].max_tokens = 77;
  const auto workload = MakePromptWorkload({}, prompts, Lengths::Parse("5").value(), 1, MakeBody());
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(workload->Next()->output_tokens, i % 2 == 0 ? 5 : 77);
    EXPECT_EQ(Words(workload->Body())[0], i % 2 == 0 ? "a" : "b");
  }
}

TEST(TokenScaleTest, IsTheLineThroughBothCounts) {
  const TokenScale scale = FitScale(10, 27, 110, 177);
  EXPECT_DOUBLE_EQ(scale.per_word, 1.5);
  EXPECT_DOUBLE_EQ(scale.fixed, 12);
  EXPECT_EQ(scale.WordsFor(162), 100);
  EXPECT_EQ(scale.WordsFor(3), 1);
  EXPECT_EQ(scale.WordsWithin(150), 100);
}

TEST(TokenScaleTest, NonsenseStaysWithinBounds) {
  const TokenScale none = FitScale(10, 50, 110, 50);
  EXPECT_GT(none.per_word, 0);
  EXPECT_LE(none.WordsFor(1000), 4000);
  EXPECT_GE(FitScale(10, 1, 110, 1'000'000).WordsFor(1000), 1);
}

}  // namespace
}  // namespace lynx::loadtest
