#include "common/text/stop_matcher.h"

#include <algorithm>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/status_matchers.h"

namespace lynx::text {
namespace {

using ::lynx::testing::StatusIs;
using ::testing::HasSubstr;

StopMatcher Make(std::vector<std::string> stops) {
  return StopMatcher::Create(std::move(stops)).value();
}

TEST(StopMatcherTest, FindsAStopStringAcrossPieces) {
  StopMatcher matcher = Make({"STOP"});
  EXPECT_EQ(matcher.Push("text S").text, "text ");
  EXPECT_EQ(matcher.Push("TO").text, "");
  const StopMatcher::Result last = matcher.Push("P and more");
  EXPECT_EQ(last.text, "");
  EXPECT_EQ(last.stop, 0u);
  EXPECT_EQ(matcher.Push("ignored").text, "");
  EXPECT_EQ(matcher.Flush(), "");
}

TEST(StopMatcherTest, HoldsBackOnlyWhatMayBecomeAStop) {
  StopMatcher matcher = Make({"abcd", "bce"});
  EXPECT_EQ(matcher.Push("xab").text, "x");
  EXPECT_EQ(matcher.Push("c").text, "");
  EXPECT_EQ(matcher.Push("x").text, "abcx");
  EXPECT_EQ(matcher.Push("abc").text, "");
  EXPECT_EQ(matcher.Flush(), "abc");
}

TEST(StopMatcherTest, AFailedStartMayHideAnother) {
  StopMatcher matcher = Make({"aab"});
  EXPECT_EQ(matcher.Push("aa").text, "");
  EXPECT_EQ(matcher.Push("a").text, "a");
  const StopMatcher::Result last = matcher.Push("b");
  EXPECT_EQ(last.text, "");
  EXPECT_EQ(last.stop, 0u);
}

TEST(StopMatcherTest, WorksInsideMultibyteText) {
  StopMatcher matcher = Make({"終わり。"});
  EXPECT_EQ(matcher.Push("これで終").text, "これで");
  EXPECT_EQ(matcher.Push("わ").text, "");
  EXPECT_EQ(matcher.Push("る。").text, "終わる。");
  const StopMatcher::Result last = matcher.Push("終わり。");
  EXPECT_EQ(last.stop, 0u);
  EXPECT_EQ(last.text, "");
}

TEST(StopMatcherTest, TheLongestOfThoseEndingTogetherWins) {
  StopMatcher matcher = Make({"\n", "\n\n", "END\n\n"});
  EXPECT_EQ(matcher.Push("a\n").stop, 0u);
  StopMatcher overlap = Make({"D\n", "END\n"});
  const StopMatcher::Result last = overlap.Push("the END\n");
  EXPECT_EQ(last.stop, 1u);
  EXPECT_EQ(last.text, "the ");
}

TEST(StopMatcherTest, WithoutStopsEverythingPasses) {
  StopMatcher matcher = Make({});
  EXPECT_EQ(matcher.Push("abc").text, "abc");
  EXPECT_EQ(matcher.Flush(), "");
}

TEST(StopMatcherTest, BadStopStringsAreRefused) {
  EXPECT_THAT(StopMatcher::Create({"a", ""}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("stop string 1 is empty")));
  EXPECT_THAT(StopMatcher::Create({"\xFF"}), StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(StopMatcher::Create(std::vector<std::string>(17, "x")),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("16")));
  EXPECT_THAT(StopMatcher::Create({std::string(StopMatcher::kMaxStopBytes + 1, 'x')}),
              StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST(StopMatcherTest, AgreesWithASearchOfTheWholeText) {
  constexpr uint32_t kSeed = 7;
  SCOPED_TRACE(kSeed);
  std::mt19937 random(kSeed);
  const auto text_of = [&random](size_t length) {
    std::string text;
    for (size_t i = 0; i < length; ++i) text += static_cast<char>('a' + random() % 2);
    return text;
  };
  for (int round = 0; round < 5000; ++round) {
    std::vector<std::string> stops(1 + random() % 3);
    for (std::string& stop : stops) stop = text_of(1 + random() % 5);
    const std::string text = text_of(random() % 20);
    size_t end = std::string::npos;
    size_t length = 0;
    for (const std::string& stop : stops) {
      const size_t at = text.find(stop);
      if (at == std::string::npos) continue;
      if (at + stop.size() < end || (at + stop.size() == end && stop.size() > length)) {
        end = at + stop.size();
        length = stop.size();
      }
    }
    const std::string expected = end == std::string::npos ? text : text.substr(0, end - length);

    StopMatcher matcher = Make(stops);
    std::string sent;
    bool stopped = false;
    for (size_t at = 0; at < text.size() && !stopped;) {
      const size_t size = std::min(text.size() - at, 1 + random() % 4);
      const StopMatcher::Result result = matcher.Push(text.substr(at, size));
      sent += result.text;
      stopped = result.stop.has_value();
      at += size;
    }
    sent += matcher.Flush();
    EXPECT_EQ(sent, expected) << text;
    EXPECT_EQ(stopped, end != std::string::npos);
  }
}

}  // namespace
}  // namespace lynx::text
