#include "common/base/utf8.h"

#include <string>

#include "gtest/gtest.h"

namespace lynx {
namespace {

TEST(Utf8Test, RefusesWhatIsNotTheShortestFormOfAScalarValue) {
  for (const char* good : {"", "a", "\xC2\x80", "\xE0\xA0\x80", "\xED\x9F\xBF", "\xEE\x80\x80",
                           "\xF0\x90\x80\x80", "\xF4\x8F\xBF\xBF"}) {
    EXPECT_TRUE(IsValidUtf8(good)) << good;
  }
  for (const char* bad :
       {"\x80", "\xC0\x80", "\xC1\xBF", "\xE0\x9F\xBF", "\xED\xA0\x80", "\xF0\x8F\xBF\xBF",
        "\xF4\x90\x80\x80", "\xF5\x80\x80\x80", "\xFF", "\xE2\x82", "a\xC3"}) {
    EXPECT_FALSE(IsValidUtf8(bad)) << bad;
  }
}

// Values of Python's bytes.decode("utf-8", "replace").
TEST(Utf8Test, OneReplacementForEachMaximalMalformedPart) {
  const std::string r = "\xEF\xBF\xBD";
  EXPECT_EQ(ReplaceInvalidUtf8("a\xE2\x82z"), "a" + r + "z");
  EXPECT_EQ(ReplaceInvalidUtf8("\xF0\x9F\x98"), r);
  EXPECT_EQ(ReplaceInvalidUtf8("\xED\xA0\x80"), r + r + r);
  EXPECT_EQ(ReplaceInvalidUtf8("\xC0\xAF\xFF"), r + r + r);
  EXPECT_EQ(ReplaceInvalidUtf8("\xE2\x82\xAC"), "\xE2\x82\xAC");
}

TEST(Utf8Test, JsonEscapesEveryControlCharacterAndNothingElse) {
  std::string out;
  AppendJsonEscaped(std::string_view("\"\\\n\r\t\0\x1F\x7F\xC3\xA9\xFF/", 12), out);
  EXPECT_EQ(out, "\\\"\\\\\\n\\r\\t\\u0000\\u001f\\u007f\xC3\xA9\xEF\xBF\xBD/");
}

}  // namespace
}  // namespace lynx
