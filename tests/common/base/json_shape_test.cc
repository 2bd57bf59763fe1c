#include "common/base/json_shape.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/status_matchers.h"

namespace lynx {
namespace {

using ::lynx::testing::IsOk;
using ::lynx::testing::StatusIs;
using ::testing::HasSubstr;

TEST(JsonShapeTest, AcceptsTheLimitAndRefusesOneMore) {
  const std::string at_limit = std::string(64, '[') + std::string(64, ']');
  EXPECT_THAT(CheckJsonShape(at_limit, 64), IsOk());
  const std::string deeper = std::string(65, '[') + std::string(65, ']');
  EXPECT_THAT(CheckJsonShape(deeper, 64),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("at byte 64")));
}

TEST(JsonShapeTest, ObjectsAndArraysCountAlike) {
  std::string text;
  for (int i = 0; i < 40; ++i) text += "{\"a\":[";
  EXPECT_THAT(CheckJsonShape(text, 64),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("too deep")));
  EXPECT_THAT(CheckJsonShape(text, 80), IsOk());
}

TEST(JsonShapeTest, UnclosedNestingOfAnyLengthIsRefusedEarly) {
  for (size_t n : {100u, 3'000u, 100'000u, 1'000'000u}) {
    EXPECT_THAT(CheckJsonShape(std::string(n, '[')),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("at byte 64")));
  }
}

TEST(JsonShapeTest, BracketsInsideStringsDoNotCount) {
  EXPECT_THAT(CheckJsonShape("\"" + std::string(1000, '[') + "\"", 2), IsOk());
  EXPECT_THAT(CheckJsonShape(R"(["a\"[[[[", "\\", "]"])", 1), IsOk());
  EXPECT_THAT(CheckJsonShape(R"(["\\", [[]]])", 2),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("too deep")));
}

TEST(JsonShapeTest, SiblingsDoNotAddDepthButCountAsElements) {
  std::string text = "[";
  for (int i = 0; i < 1000; ++i) text += "[],";
  text += "[]]";
  EXPECT_THAT(CheckJsonShape(text, 2), IsOk());
  EXPECT_THAT(CheckJsonShape(text, 2, 1500),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("too many elements")));
}

TEST(JsonShapeTest, UnfinishedStringsAndEscapesAreLeftToTheParser) {
  EXPECT_THAT(CheckJsonShape("\"abc"), IsOk());
  EXPECT_THAT(CheckJsonShape("\"abc\\"), IsOk());
  EXPECT_THAT(CheckJsonShape("]]]]"), IsOk());
}

TEST(JsonShapeTest, ClosingBracketsEarnNoCredit) {
  const std::string text = std::string(100, ']') + std::string(100, '[');
  EXPECT_THAT(CheckJsonShape(text), StatusIs(absl::StatusCode::kInvalidArgument));
}

}  // namespace
}  // namespace lynx
