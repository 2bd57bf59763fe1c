#include "common/base/json_keys.h"

#include <optional>
#include <string>

#include "gtest/gtest.h"

namespace lynx {
namespace {

TEST(JsonKeysTest, AKeyThatAnObjectHasTwiceIsFound) {
  EXPECT_EQ(RepeatedJsonKey(R"({"a":1,"b":2,"a":3})"), "a");
  EXPECT_EQ(RepeatedJsonKey(R"({"x":[{"b":{},"b":[]}]})"), "b");
  EXPECT_EQ(RepeatedJsonKey(R"([{"a":1}, { "" : {"c":0} , "":"c"}])"), "");
  EXPECT_EQ(RepeatedJsonKey(R"({"a":{"b":1,"c":2},"b":[1,2],"b":0})"), "b");
}

TEST(JsonKeysTest, KeysOfSeveralObjectsAndValuesAreNoRepetition) {
  for (const char* json :
       {R"({"a":{"a":{"a":"a"}},"b":["a","a","a"]})", R"([{"a":1},{"a":1}])",
        R"({"a":"a","b":"a,\"a\":1"})", R"({"a":1,"A":2,"a ":3})", "{}", "[]", "7", R"("a")"}) {
    EXPECT_EQ(RepeatedJsonKey(json), std::nullopt) << json;
  }
}

TEST(JsonKeysTest, SpellingsOfOneKeyAreOneKey) {
  EXPECT_EQ(RepeatedJsonKey(R"({"hidden_size":1,"hidden\u005fsize":2})"), "hidden_size");
  EXPECT_EQ(RepeatedJsonKey(R"({"\ud83c\udf89\n\/":1,"🎉\u000A/":2})"), "🎉\n/");
  EXPECT_EQ(RepeatedJsonKey(R"({"\\u0061":1,"a":2})"), std::nullopt);
}

// Parsers refuse it; nothing here is read that is not there.
TEST(JsonKeysTest, WhatIsNoJsonDoesNoHarm) {
  for (const char* text : {"", "{", "}", "]}", "\"", "{\"", "{\"\\", "{\"\\u", "{\"\\ud800",
                           "{\"a\\", ",\"a\"", "{\"\\u12\"}"}) {
    EXPECT_EQ(RepeatedJsonKey(text), std::nullopt) << text;
  }
}

}  // namespace
}  // namespace lynx
