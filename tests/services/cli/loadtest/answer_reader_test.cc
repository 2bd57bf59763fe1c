#include "services/cli/loadtest/answer_reader.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lynx::loadtest {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

absl::Time At(int ms) { return absl::UnixEpoch() + absl::Milliseconds(ms); }

http::HttpResponse Head(int status, const std::string& type = http::kSseContentType) {
  return {.status = status, .headers = {{"content-type", type}}, .body = ""};
}

std::string Delta(const std::string& delta, const std::string& more = "") {
  return http::FormatSseData(
      absl::StrCat(R"({"choices":[{"index":0,"delta":)", delta, more, "}]}"));
}
std::string Text(const std::string& text) { return Delta("{\"content\":\"" + text + "\"}"); }
std::string Usage(int prompt, int completion) {
  return http::FormatSseData(absl::StrCat(R"({"choices":[],"usage":{"prompt_tokens":)", prompt,
                                          R"(,"completion_tokens":)", completion,
                                          R"(,"prompt_tokens_details":{"cached_tokens":3}}})"));
}
const char kDone[] = "data: [DONE]\n\n";

// Feeds pieces at 10, 20, 30... ms; what they leave open ends well.
Answer Read(const std::vector<std::string>& pieces, const http::HttpResponse& head = Head(200)) {
  AnswerReader reader({});
  reader.OnHead(head);
  int ms = 0;
  for (const std::string& piece : pieces) {
    if (!reader.OnBody(piece, At(ms += 10))) return reader.Take();
  }
  reader.OnEnd(absl::OkStatus(), At(ms + 10));
  return reader.Take();
}

TEST(AnswerReaderTest, ReadsAChat) {
  const Answer answer = Read({Delta(R"({"role":"assistant","content":""})"), Text("a"), Text("bc"),
                              Delta("{}", R"(,"finish_reason":"length")"), Usage(11, 2), kDone});
  EXPECT_EQ(answer.outcome, Outcome::kOk);
  EXPECT_THAT(answer.problem, IsEmpty());
  ASSERT_THAT(answer.chunks, SizeIs(3));
  EXPECT_EQ(answer.chunks[0].at, At(20)) << "the piece that names a role brings no token";
  EXPECT_EQ(answer.chunks[1].text_bytes, 2);
  EXPECT_EQ(answer.chunks[2].text_bytes, 0);
  EXPECT_EQ(answer.prompt_tokens, 11);
  EXPECT_EQ(answer.completion_tokens, 2);
  EXPECT_EQ(answer.cached_tokens, 3);
  EXPECT_EQ(answer.end, At(60));
}

TEST(AnswerReaderTest, BytesMayBeCutAnywhere) {
  const std::string whole = Text("a") + ": comment\n\n" + Text("b") + Usage(1, 2) + kDone;
  for (size_t cut = 1; cut < whole.size(); ++cut) {
    const Answer answer = Read({whole.substr(0, cut), whole.substr(cut)});
    ASSERT_EQ(answer.outcome, Outcome::kOk) << cut;
    ASSERT_THAT(answer.chunks, SizeIs(2)) << cut;
  }
}

TEST(AnswerReaderTest, TextIsWhereverModelsPutIt) {
  for (const char* delta :
       {R"({"reasoning_content":"x"})", R"({"reasoning":"x"})", R"({"refusal":"x"})",
        R"({"tool_calls":[{"index":0,"function":{"name":"f","arguments":""}}]})",
        R"({"tool_calls":[{"index":0,"function":{"arguments":"{"}}]})"}) {
    EXPECT_THAT(Read({Delta(delta), kDone}).chunks, SizeIs(1)) << delta;
  }
  EXPECT_THAT(Read({http::FormatSseData(R"({"choices":[{"text":"x"}]})"), kDone}).chunks,
              SizeIs(1));
}

TEST(AnswerReaderTest, RunningUsageIsKeptWithEachPiece) {
  const std::string first = http::FormatSseData(
      R"({"choices":[{"delta":{"content":"ab"}}],"usage":{"prompt_tokens":5,"completion_tokens":2}})");
  const Answer answer = Read({first, Text("c"), kDone});
  ASSERT_THAT(answer.chunks, SizeIs(2));
  EXPECT_EQ(answer.chunks[0].tokens_so_far, 2);
  EXPECT_EQ(answer.chunks[1].tokens_so_far, -1);
}

TEST(AnswerReaderTest, FailuresAreToldApart) {
  struct Case {
    const char* name;
    Answer answer;
    Outcome outcome;
    const char* problem;
  };
  const auto head = [](int status) { return Head(status, "application/json"); };
  for (const Case& c : {
           Case{"no [DONE]", Read({Text("a")}), Outcome::kCut, "[DONE]"},
           Case{"error object", Read({Text("a"), "data: {\"error\":{\"message\":\"oom\"}}\n\n"}),
                Outcome::kErrorEvent, "oom"},
           Case{"error text", Read({"data: {\"error\":\"bad\"}\n\n"}), Outcome::kErrorEvent, "bad"},
           Case{"vLLM's error", Read({"data: {\"object\":\"error\",\"message\":\"m\"}\n\n"}),
                Outcome::kErrorEvent, "m"},
           Case{"500", Read({R"({"error":{"message":"broken"}})"}, head(500)), Outcome::kHttpStatus,
                "broken"},
           Case{"503 in plain", Read({"busy\n<html>"}, head(503)), Outcome::kHttpStatus, "busy "},
           Case{"429", Read({R"({"error":{"message":"later"}})"}, head(429)), Outcome::kRefused,
                "later"},
           Case{"no stream", Read({R"({"choices":[]})"}, head(200)), Outcome::kProtocol,
                "not an event stream"},
           Case{"no JSON", Read({"data: hello\n\n"}), Outcome::kProtocol, "hello"},
           Case{"a list", Read({"data: [1]\n\n"}), Outcome::kProtocol, "[1]"},
           Case{"nested", Read({"data: " + std::string(5000, '[') + "\n\n"}), Outcome::kProtocol,
                "["},
           Case{"an endless event", Read(std::vector<std::string>(40, std::string(65536, 'x'))),
                Outcome::kProtocol, "larger than"},
       }) {
    EXPECT_EQ(c.answer.outcome, c.outcome) << c.name;
    EXPECT_THAT(c.answer.problem, HasSubstr(c.problem)) << c.name;
    EXPECT_TRUE(c.answer.end.has_value()) << c.name;
  }
}

TEST(AnswerReaderTest, ConnectionsThatBreakAreToldApart) {
  AnswerReader before({});
  before.OnEnd(absl::UnavailableError("refused"), At(1));
  EXPECT_EQ(before.Take().outcome, Outcome::kConnection);
  AnswerReader within({});
  within.OnHead(Head(200));
  within.OnEnd(absl::DataLossError("reset"), At(1));
  EXPECT_EQ(within.Take().outcome, Outcome::kCut);
  AnswerReader garbage({});
  garbage.OnEnd(absl::InvalidArgumentError("malformed"), At(1));
  EXPECT_EQ(garbage.Take().outcome, Outcome::kProtocol);
}

TEST(AnswerReaderTest, RetryAfterIsReadInSeconds) {
  const auto retry_after = [](const char* text) {
    http::HttpResponse head = Head(429, "text/plain");
    head.headers.emplace_back("retry-after", text);
    return Read({}, head).retry_after;
  };
  EXPECT_EQ(retry_after("7"), absl::Seconds(7));
  for (const char* text : {"soon", "-1", "1e99", "Wed, 21 Oct 2015 07:28:00 GMT"}) {
    EXPECT_EQ(retry_after(text), std::nullopt) << text;
  }
}

TEST(AnswerReaderTest, MorePiecesThanTokensAskedForEndIt) {
  AnswerReader reader({.max_chunks = 3});
  reader.OnHead(Head(200));
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(reader.OnBody(Text("a"), At(i)));
  EXPECT_FALSE(reader.OnBody(Text("a"), At(4)));
  EXPECT_EQ(reader.Take().outcome, Outcome::kProtocol);
}

TEST(AnswerReaderTest, LongErrorBodiesAreNotKept) {
  const Answer answer =
      Read(std::vector<std::string>(100, std::string(65536, 'x')), Head(500, "text/html"));
  EXPECT_EQ(answer.outcome, Outcome::kHttpStatus);
  EXPECT_LE(answer.problem.size(), 300u);
}

TEST(AnswerReaderTest, NonsenseInKnownFieldsIsIgnored) {
  const Answer answer = Read(
      {"data: {\"choices\":7,\"usage\":[]}\n\n",
       "data: {\"choices\":[3],\"usage\":{\"completion_tokens\":-4,\"prompt_tokens\":1e99}}\n\n",
       "data: {\"choices\":[{\"delta\":4,\"text\":{},\"finish_reason\":null}],\"error\":null}\n\n",
       "data: {\"choices\":[{\"delta\":{\"tool_calls\":{\"a\":1}}}]}\n\n", kDone});
  EXPECT_EQ(answer.outcome, Outcome::kOk);
  EXPECT_THAT(answer.chunks, IsEmpty());
  EXPECT_FALSE(answer.completion_tokens.has_value());
}

}  // namespace
}  // namespace lynx::loadtest
