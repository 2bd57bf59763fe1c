#include "services/cli/loadtest/trace.h"

#include <string>

#include "common/base/file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/status_matchers.h"

namespace lynx::loadtest {
namespace {

using ::lynx::testing::IsOk;
using ::lynx::testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

TEST(TraceTest, ReadsMooncake) {
  const auto trace = ParseTrace(
      "{\"timestamp\": 1000, \"input_length\": 700, \"output_length\": 5, \"hash_ids\": [4, 9]}\n"
      "\r\n"
      "{\"timestamp\": 3500.5, \"input_length\": 0, \"output_length\": 1, \"more\": {}}",
      "t.jsonl", TraceFormat::kAuto);
  ASSERT_THAT(trace, IsOk());
  EXPECT_EQ(trace->format, TraceFormat::kMooncake);
  ASSERT_THAT(trace->requests, SizeIs(2));
  EXPECT_EQ(trace->requests[0].at, absl::ZeroDuration());
  EXPECT_EQ(trace->requests[0].input_tokens, 700);
  EXPECT_EQ(trace->requests[0].output_tokens, 5);
  EXPECT_THAT(trace->requests[0].hash_ids, ElementsAre(4, 9));
  EXPECT_EQ(trace->requests[1].at, absl::Milliseconds(2500.5));
  EXPECT_EQ(trace->requests[1].input_tokens, 1) << "an empty prompt cannot be sent";
  EXPECT_THAT(trace->requests[1].hash_ids, IsEmpty());
}

// Both forms that were published: of 2023, and of 2024 with an offset.
TEST(TraceTest, ReadsAzure) {
  const auto trace = ParseTrace(
      "TIMESTAMP,ContextTokens,GeneratedTokens\n"
      "2023-11-16 18:17:03.9799600,4808,10\n"
      "2023-11-16 18:17:04.0319600,3180,8\n",
      "t.csv", TraceFormat::kAuto);
  ASSERT_THAT(trace, IsOk());
  EXPECT_EQ(trace->format, TraceFormat::kAzure);
  ASSERT_THAT(trace->requests, SizeIs(2));
  EXPECT_EQ(trace->requests[1].at, absl::Milliseconds(52));
  EXPECT_EQ(trace->requests[1].input_tokens, 3180);
  const auto later = ParseTrace(
      "TIMESTAMP,ContextTokens,GeneratedTokens\n2024-05-10 00:00:00.009930+00:00,1,2\n"
      "2024-05-10 01:00:01.009930+01:00,1,2\n",
      "t.csv", TraceFormat::kAuto);
  ASSERT_THAT(later, IsOk());
  EXPECT_EQ(later->requests[1].at, absl::Seconds(1));
}

TEST(TraceTest, ReadsBurstGptAndLeavesFailuresOut) {
  const auto trace = ParseTrace(
      "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens\n"
      "9,a,1,\"Chat, \"\"GPT\"\"\",10,20,30\n"
      "5,,,GPT-4,3,0,3\n"
      "5.5,,,GPT-4,7,8,15\n",
      "t.csv", TraceFormat::kAuto);
  ASSERT_THAT(trace, IsOk());
  EXPECT_EQ(trace->format, TraceFormat::kBurstGpt);
  EXPECT_EQ(trace->without_answer, 1);
  ASSERT_THAT(trace->requests, SizeIs(2));
  EXPECT_EQ(trace->requests[0].input_tokens, 7) << "by time, not by line";
  EXPECT_EQ(trace->requests[1].at, absl::Seconds(3.5));
  EXPECT_EQ(trace->requests[1].output_tokens, 20);
}

TEST(TraceTest, MalformedLinesAreNamedWithTheirPlace) {
  const std::string azure = "TIMESTAMP,ContextTokens,GeneratedTokens\n";
  const std::string burst = "Timestamp,Request tokens,Response tokens\n";
  const std::string good = R"({"timestamp":1,"input_length":2,"output_length":3})";
  struct Case {
    std::string text;
    const char* where;
    const char* what;
  };
  for (const Case& c : {
           Case{"", "f:", "no request"},
           Case{"hello\n", "f:1:1:", "Mooncake"},
           Case{good + "\n{\"timestamp\":1,]\n", "f:2:16:", "JSON"},
           Case{good + "\n{\"timestamp\":1", "f:2:15:", "JSON"},
           Case{good + "\n[1]\n", "f:2:1:", "object"},
           Case{R"({"timestamp":-1,"input_length":2,"output_length":3})", "f:1:2:", "timestamp"},
           Case{R"({"timestamp":1e30,"input_length":2,"output_length":3})", "f:1:2:", "timestamp"},
           Case{R"({"timestamp":1,"input_length":"2","output_length":3})", "f:1:16:", "input"},
           Case{R"({"timestamp":1,"input_length":2,"output_length":-3})", "f:1:33:", "output"},
           Case{R"({"timestamp":1,"input_length":2,"output_length":3,"hash_ids":[1,-2]})",
                "f:1:51:", "hash_ids"},
           Case{R"({"timestamp":1,"input_length":2,"output_length":3,"hash_ids":7})",
                "f:1:51:", "hash_ids"},
           Case{std::string(3000, '['), "f:1:1:", ""},
           Case{azure, "f:", "no request"},
           Case{azure + "yesterday,1,2\n", "f:2:1:", "TIMESTAMP"},
           Case{azure + "2023-11-16 18:17:03.9,x,2\n", "f:2:23:", "ContextTokens"},
           Case{azure + "2023-11-16 18:17:03.9,1\n", "f:2:24:", "GeneratedTokens"},
           Case{azure + "\"2023,1,2\n", "f:2:1:", "quoted"},
           Case{"ContextTokens,GeneratedTokens\n", "f:1:1:", "TIMESTAMP"},
           Case{burst + "-1,2,3\n", "f:2:1:", "Timestamp"},
           Case{burst + "1,2,99999999999\n", "f:2:5:", "Response tokens"},
           Case{burst + "1,2.5,3\n", "f:2:3:", "Request tokens"},
           Case{"Request tokens\n1\n", "f:1:1:", "Timestamp"},
       }) {
    SCOPED_TRACE(c.text.substr(0, 120));
    const auto trace = ParseTrace(c.text, "f", TraceFormat::kAuto);
    EXPECT_THAT(trace,
                StatusIs(absl::StatusCode::kInvalidArgument,
                         ::testing::AllOf(::testing::StartsWith(c.where), HasSubstr(c.what))));
  }
}

TEST(TraceTest, AGivenFormatIsTakenAtItsWord) {
  EXPECT_THAT(ParseTrace("a,b\n", "f", TraceFormat::kAzure),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("TIMESTAMP")));
  EXPECT_THAT(ParseTrace("a,b\n", "f", TraceFormat::kMooncake),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("JSON")));
}

TEST(TraceTest, TheMadeTracesAreOfTheirFormats) {
  struct Case {
    const char* name;
    TraceFormat format;
    int64_t without_answer;
  };
  for (const Case& c : {Case{"mooncake.jsonl", TraceFormat::kMooncake, 0},
                        Case{"azure.csv", TraceFormat::kAzure, 0},
                        Case{"burstgpt.csv", TraceFormat::kBurstGpt, 4}}) {
    SCOPED_TRACE(c.name);
    const std::string file = std::string("services/cli/loadtest/traces/") + c.name;
    const auto text = ReadFile(file, 1 << 20);
    ASSERT_THAT(text, IsOk());
    const auto trace = ParseTrace(*text, file, TraceFormat::kAuto);
    ASSERT_THAT(trace, IsOk());
    EXPECT_EQ(trace->format, c.format);
    EXPECT_EQ(trace->without_answer, c.without_answer);
    EXPECT_GE(trace->requests.size(), 30u);
  }
}

}  // namespace
}  // namespace lynx::loadtest
