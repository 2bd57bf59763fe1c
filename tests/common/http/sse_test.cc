#include "common/http/sse.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/status_matchers.h"

namespace lynx::http {
namespace {

using ::lynx::testing::IsOk;
using ::lynx::testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

std::vector<std::string> DataOf(SseParser& parser) {
  std::vector<std::string> all;
  while (auto event = parser.Next()) all.push_back(event->data);
  return all;
}

std::vector<std::string> Parse(std::string_view stream) {
  SseParser parser;
  EXPECT_THAT(parser.Feed(stream), IsOk());
  return DataOf(parser);
}

TEST(SseFormatTest, EveryLineOfTheDataGetsItsField) {
  EXPECT_EQ(FormatSseData("[DONE]"), "data: [DONE]\n\n");
  EXPECT_EQ(FormatSseData("a\nb\r\nc\rd"), "data: a\ndata: b\ndata: c\ndata: d\n\n");
  EXPECT_EQ(FormatSseData(""), "data: \n\n");
}

TEST(SseFormatTest, ACommentCannotBecomeAnEvent) {
  EXPECT_EQ(FormatSseComment("keep-alive"), ": keep-alive\n\n");
  EXPECT_THAT(Parse(FormatSseComment("x\ndata: forged")), IsEmpty());
}

TEST(SseParserTest, ReadsWhatFormatWrites) {
  EXPECT_THAT(
      Parse(FormatSseData("one") + FormatSseComment("ping") + FormatSseData("two\n\nlines")),
      ElementsAre("one", "two\n\nlines"));
}

TEST(SseParserTest, FollowsTheStandard) {
  struct Case {
    std::string_view stream;
    std::vector<std::string> events;
  };
  const Case cases[] = {
      {"data: a\n\ndata: b\n\n", {"a", "b"}},
      {"data: a\r\n\r\ndata: b\r\n\r\n", {"a", "b"}},
      {"data: a\r\rdata: b\r\r", {"a", "b"}},
      {"data:a\ndata:  b\n\n", {"a\n b"}},
      {"data\n\n", {""}},
      {"data\ndata\n\n", {"\n"}},
      {"\n\n\n", {}},
      {": comment\ndata: a\n: another\n\n", {"a"}},
      {"\xEF\xBB\xBF"
       "data: a\n\n",
       {"a"}},
      {"unknown: x\ndata: a\nretry: 5\n\n", {"a"}},
      {"data: cut off", {}},
      {"data: cut off\n", {}},
      {"event: only\n\ndata: a\n\n", {"a"}},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.stream);
    EXPECT_EQ(Parse(c.stream), c.events);
  }
}

TEST(SseParserTest, CarriesTypeAndLastId) {
  SseParser parser;
  ASSERT_THAT(parser.Feed("id: 7\nevent: delta\ndata: a\n\ndata: b\n\n"), IsOk());
  const auto first = parser.Next();
  ASSERT_TRUE(first.has_value());
  EXPECT_EQ(first->type, "delta");
  EXPECT_EQ(first->id, "7");
  const auto second = parser.Next();
  ASSERT_TRUE(second.has_value());
  EXPECT_EQ(second->type, "message");
  EXPECT_EQ(second->id, "7");
}

TEST(SseParserTest, WhereTheStreamIsCutMakesNoDifference) {
  const std::string stream =
      "data: first\r\n\r\n: note\r\ndata: x\rdata: y\n\nevent: e\r\ndata: {\"k\":1}\r\n\r\n";
  const std::vector<std::string> whole = Parse(stream);
  ASSERT_THAT(whole, ElementsAre("first", "x\ny", "{\"k\":1}"));
  for (size_t a = 0; a <= stream.size(); ++a) {
    for (size_t b = a; b <= stream.size(); ++b) {
      SseParser parser;
      ASSERT_THAT(parser.Feed(stream.substr(0, a)), IsOk());
      ASSERT_THAT(parser.Feed(stream.substr(a, b - a)), IsOk());
      ASSERT_THAT(parser.Feed(stream.substr(b)), IsOk());
      ASSERT_EQ(DataOf(parser), whole) << "cut at " << a << " and " << b;
    }
  }
}

TEST(SseParserTest, AnEventWithoutEndIsRefused) {
  SseParser one_line(/*max_event_bytes=*/1000);
  EXPECT_THAT(one_line.Feed(std::string(1001, 'x')),
              StatusIs(absl::StatusCode::kResourceExhausted));
  SseParser many_lines(/*max_event_bytes=*/1000);
  absl::Status status;
  for (int i = 0; i < 1000 && status.ok(); ++i) status = many_lines.Feed("data: y\n");
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kResourceExhausted));
}

}  // namespace
}  // namespace lynx::http
