#include "services/router/front/chat_request.h"

#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "services/router/front/api_error.h"
#include "services/router/front/json_fields.h"
#include "tests/support/status_matchers.h"

namespace lynx::router {
namespace {

using ::lynx::testing::IsOk;
using ::testing::HasSubstr;

RequestLimits Limits() {
  RequestLimits limits;
  limits.model_names = {"m"};
  limits.vocab_size = 100;
  limits.max_context_tokens = 2048;
  return limits;
}

constexpr char kHi[] = R"({"role":"user","content":"hi"})";
constexpr char kTool[] = R"({"type":"function","function":{"name":"f"}})";

absl::StatusOr<ApiRequest> Parse(const std::string& messages, const std::string& fields = "",
                                 const RequestLimits& limits = Limits()) {
  return ParseChatRequest(absl::StrCat(R"({"model":"m","messages":[)", messages, "]",
                                       fields.empty() ? "" : ",", fields, "}"),
                          limits);
}

// An assistant's call with these arguments, JSON as in the request.
std::string Call(const std::string& arguments) {
  return absl::StrCat(R"({"role":"assistant","content":null,"tool_calls":[{"id":"c1",)",
                      R"("type":"function","function":{"name":"f","arguments":)", arguments,
                      "}}]}");
}

ApiError Refused(const std::string& messages, const std::string& fields = "",
                 const RequestLimits& limits = Limits()) {
  auto request = Parse(messages, fields, limits);
  if (!request.ok()) return ToApiError(request.status());
  ADD_FAILURE() << "accepted: " << messages.substr(0, 200) << " " << fields.substr(0, 200);
  return {};
}

TEST(ChatRequestTest, ToolsGoOnAsTheyWereWritten) {
  const std::string tools =
      R"([{"type":"function" , "function":{"parameters":{"z":1.50,"a":{}},"name":"f"},"x":[]}])";
  auto request = Parse(kHi, absl::StrCat(R"("tools":)", tools));
  ASSERT_THAT(request, IsOk());
  EXPECT_EQ(request->chat.tools_json, tools);
  request = Parse(kHi, absl::StrCat(R"("tool_choice":"auto","tools": )", tools));
  ASSERT_THAT(request, IsOk());
  EXPECT_EQ(request->chat.tools_json, tools);
  // The model is not to call any: it is not told of them.
  request = Parse(kHi, absl::StrCat(R"("tool_choice":"none","tools":)", tools));
  ASSERT_THAT(request, IsOk());
  EXPECT_EQ(request->chat.tools_json, "");
  request = Parse(kHi, R"("tools":[],"tool_choice":null)");
  ASSERT_THAT(request, IsOk());
  EXPECT_EQ(request->chat.tools_json, "");
}

TEST(ChatRequestTest, ArgumentsBecomeTheObjectThatTheyDescribe) {
  const auto function = [](const std::string& arguments) {
    return absl::StrCat(R"({"tool_calls":[{"id":"c1","type":"function","function":)",
                        R"({"name":"f","arguments":)", arguments, "}}]}");
  };
  for (const auto& [arguments, object] : std::vector<std::pair<std::string, std::string>>{
           {R"("{\"z\": 1.50, \"a\": \"\u00e9\"}")", "{\"z\": 1.50, \"a\": \"\u00e9\"}"},
           {R"(" {} ")", " {} "},
           {R"("")", "{}"},
           {"null", "{}"},
           {R"({"z": [1], "a": null})", R"({"z": [1], "a": null})"}}) {
    auto request = Parse(Call(arguments));
    ASSERT_THAT(request, IsOk()) << arguments;
    const text::ChatMessage& message = request->chat.messages.at(0);
    EXPECT_EQ(message.content, std::nullopt);
    EXPECT_EQ(message.extra_json, function(object));
    RequestLimits as_text = Limits();
    as_text.tool_arguments_as_text = true;
    request = Parse(Call(arguments), "", as_text);
    ASSERT_THAT(request, IsOk()) << arguments;
    EXPECT_EQ(request->chat.messages.at(0).extra_json, function(Json(object).dump()));
  }
}

TEST(ChatRequestTest, MessagesCarryWhatTemplatesRead) {
  auto request = Parse(
      R"({"role":"user","name":"ann","content":"q","made_up":1},
         {"role":"assistant","content":"a","reasoning_content":"r\n","refusal":null},
         {"role":"assistant","content":"a","reasoning":"s","thinking":"t","tool_calls":[]},
         {"role":"tool","tool_call_id":"c1","content":[{"type":"text","text":"x"},{"type":"text","text":"y"}]},
         {"role":"assistant","content":null,"reasoning_content":"r"})");
  ASSERT_THAT(request, IsOk());
  const auto& messages = request->chat.messages;
  ASSERT_EQ(messages.size(), 5u);
  EXPECT_EQ(messages[0].extra_json, R"({"name":"ann"})");
  EXPECT_EQ(messages[1].extra_json, R"({"reasoning_content":"r\n","reasoning":"r\n"})");
  EXPECT_EQ(messages[2].extra_json, R"({"reasoning_content":"s","reasoning":"s","thinking":"t"})");
  EXPECT_EQ(messages[3].extra_json, R"({"tool_call_id":"c1"})");
  EXPECT_EQ(messages[3].content, "x\ny");
  EXPECT_EQ(messages[4].content, std::nullopt);
}

TEST(ChatRequestTest, VariablesAndDocumentsReachTheTemplate) {
  auto request = Parse(kHi, R"("chat_template_kwargs":{"enable_thinking":false,"a\"b":[1, 2]},
                               "documents":[{"title":"t","text":"x"}])");
  ASSERT_THAT(request, IsOk());
  EXPECT_EQ(request->chat.variables_json,
            R"({"enable_thinking":false,"a\"b":[1, 2],"documents":[{"title":"t","text":"x"}]})");
  auto tokenize = ParseTokenizeRequest(
      absl::StrCat(R"({"messages":[)", kHi, R"(],"tools":[)", kTool,
                   R"(],"chat_template_kwargs":{"k":1},"add_generation_prompt":false})"),
      Limits());
  ASSERT_THAT(tokenize, IsOk());
  const auto& chat = std::get<text::ChatInput>(tokenize->input);
  EXPECT_EQ(chat.tools_json, absl::StrCat("[", kTool, "]"));
  EXPECT_EQ(chat.variables_json, R"({"k":1})");
  EXPECT_FALSE(chat.add_generation_prompt);
}

TEST(ChatRequestTest, ReasoningEffortReachesATemplateThatHeedsIt) {
  RequestLimits limits = Limits();
  EXPECT_EQ(Refused(kHi, R"("reasoning_effort":"low")", limits).param, "reasoning_effort");
  auto request = Parse(kHi, R"("reasoning_effort":"none")", limits);
  ASSERT_THAT(request, IsOk());
  EXPECT_EQ(request->chat.variables_json, "");

  limits.reasoning_effort = true;
  for (const char* effort : {"none", "minimal", "low", "medium", "high", "xhigh"}) {
    request = Parse(
        kHi, absl::StrCat(R"("chat_template_kwargs":{"k":1},"reasoning_effort":")", effort, "\""),
        limits);
    ASSERT_THAT(request, IsOk()) << effort;
    EXPECT_EQ(request->chat.variables_json,
              absl::StrCat(R"({"k":1,"reasoning_effort":")", effort, "\"}"));
  }
  request = Parse(kHi, R"("reasoning_effort":null)", limits);
  ASSERT_THAT(request, IsOk());
  EXPECT_EQ(request->chat.variables_json, "");
  for (const char* field :
       {R"("reasoning_effort":"harder")", R"("reasoning_effort":3)",
        R"("reasoning_effort":"low","chat_template_kwargs":{"reasoning_effort":"low"})"}) {
    EXPECT_EQ(Refused(kHi, field, limits).param, "reasoning_effort") << field;
  }
}

TEST(ChatRequestTest, OfARepeatedKeyTheLastOneCounts) {
  auto request =
      ParseChatRequest(absl::StrCat("\xEF\xBB\xBF", R"({"messages":5,"model":"m","messages":[)",
                                    Call(R"("bad","arguments":"{\"k\":1}")"),
                                    R"(],"tools":7,"t\u006fols":[)", kTool, "]}"),
                       Limits());
  ASSERT_THAT(request, IsOk());
  EXPECT_EQ(request->chat.tools_json, absl::StrCat("[", kTool, "]"));
  EXPECT_THAT(request->chat.messages.at(0).extra_json, HasSubstr(R"("arguments":{"k":1}})"));
}

TEST(ChatRequestTest, BadMessagesAreRefusedByField) {
  const std::pair<std::string, const char*> kCases[] = {
      {Call("5"), "messages[0].tool_calls[0].function.arguments"},
      {Call("[1]"), "messages[0].tool_calls[0].function.arguments"},
      {Call(R"("[1]")"), "messages[0].tool_calls[0].function.arguments"},
      {Call(R"("{")"), "messages[0].tool_calls[0].function.arguments"},
      {Call(R"("{}{}")"), "messages[0].tool_calls[0].function.arguments"},
      {Call(R"("{\"a\":1e999}")"), "messages[0].tool_calls[0].function.arguments"},
      {Call(R"("{\"a\":NaN}")"), "messages[0].tool_calls[0].function.arguments"},
      {R"({"role":"assistant","tool_calls":5})", "messages[0].tool_calls"},
      {R"({"role":"assistant","tool_calls":{"id":"c"}})", "messages[0].tool_calls"},
      {R"({"role":"assistant","tool_calls":[5]})", "messages[0].tool_calls[0]"},
      {R"({"role":"assistant","tool_calls":[{"id":"c"}]})", "messages[0].tool_calls[0].function"},
      {R"({"role":"assistant","tool_calls":[{"type":"custom","custom":{}}]})",
       "messages[0].tool_calls[0].type"},
      {R"({"role":"assistant","tool_calls":[{"type":5}]})", "messages[0].tool_calls[0].type"},
      {R"({"role":"assistant","tool_calls":[{"function":{}}]})",
       "messages[0].tool_calls[0].function.name"},
      {R"({"role":"assistant","tool_calls":[{"function":{"name":""}}]})",
       "messages[0].tool_calls[0].function.name"},
      {R"({"role":"assistant","tool_calls":[{"id":5,"function":{"name":"f"}}]})",
       "messages[0].tool_calls[0].id"},
      {R"({"role":"user","content":"x","tool_calls":[{}]})", "messages[0].tool_calls"},
      {R"({"role":"assistant","content":null,"tool_calls":[]})", "messages[0].content"},
      {R"({"role":"user","content":null,"reasoning_content":"r"})", "messages[0].content"},
      {R"({"role":"tool","content":null,"tool_call_id":"c"})", "messages[0].content"},
      {R"({"role":"tool","content":"x","tool_call_id":5})", "messages[0].tool_call_id"},
      {R"({"role":"user","content":"x","name":["n"]})", "messages[0].name"},
      {R"({"role":"assistant","content":"x","reasoning":{}})", "messages[0].reasoning"},
      {R"({"role":"assistant","content":"x","reasoning_content":1})",
       "messages[0].reasoning_content"},
  };
  for (const auto& [message, param] : kCases) {
    const ApiError error = Refused(message);
    EXPECT_EQ(error.http_status, 400) << message;
    EXPECT_EQ(error.param, param) << message;
  }
}

TEST(ChatRequestTest, BadFieldsAreRefusedByName) {
  const std::string tools = absl::StrCat(R"("tools":[)", kTool, "],");
  const std::pair<std::string, const char*> kCases[] = {
      {R"("tools":{})", "tools"},
      {R"("tools":"f")", "tools"},
      {R"("tools":[5])", "tools[0]"},
      {R"("tools":[{"type":"web_search"}])", "tools[0].type"},
      {R"("tools":[{"type":"function"}])", "tools[0].function"},
      {R"("tools":[{"function":{"description":"d"}}])", "tools[0].function.name"},
      {R"("tools":[{"function":{"name":5}}])", "tools[0].function.name"},
      {R"("tools":[{"function":{"name":"f","parameters":[]}}])", "tools[0].function.parameters"},
      {R"("tool_choice":"auto")", "tool_choice"},
      {tools + R"("tool_choice":"required")", "tool_choice"},
      {tools + R"("tool_choice":{"type":"function","function":{"name":"f"}})", "tool_choice"},
      {tools + R"("tool_choice":5)", "tool_choice"},
      {R"("chat_template_kwargs":[])", "chat_template_kwargs"},
      {R"("chat_template_kwargs":{"messages":[]})", "chat_template_kwargs.messages"},
      {R"("chat_template_kwargs":{"chat_template":"x"})", "chat_template_kwargs.chat_template"},
      {R"("documents":{"a":1})", "documents"},
      {R"("documents":["a"])", "documents[0]"},
  };
  for (const auto& [fields, param] : kCases) {
    const ApiError error = Refused(kHi, fields);
    EXPECT_EQ(error.http_status, 400) << fields;
    EXPECT_EQ(error.param, param) << fields;
  }
  EXPECT_THAT(Refused(kHi, R"("tools":[{"type":"web_search"}])").message, HasSubstr("web_search"));
}

std::string Repeated(const std::string& item, int count) {
  std::string list = item;
  for (int i = 1; i < count; ++i) absl::StrAppend(&list, ",", item);
  return list;
}

TEST(ChatRequestTest, SizesAreBounded) {
  EXPECT_THAT(Parse(kHi, absl::StrCat(R"("tools":[)", Repeated(kTool, 128), "]")), IsOk());
  EXPECT_EQ(Refused(kHi, absl::StrCat(R"("tools":[)", Repeated(kTool, 129), "]")).param, "tools");
  EXPECT_EQ(Refused(kHi, absl::StrCat(R"("documents":[)", Repeated("{}", 129), "]")).param,
            "documents");
  const auto calls = [](int count) {
    return absl::StrCat(R"({"role":"assistant","tool_calls":[)", Repeated(kTool, count), "]}");
  };
  EXPECT_THAT(Parse(calls(128)), IsOk());
  EXPECT_EQ(Refused(calls(129)).param, "messages[0].tool_calls");
  const auto named = [](size_t size) {
    return absl::StrCat(R"({"role":"user","content":"x","name":")", std::string(size, 'n'), "\"}");
  };
  EXPECT_THAT(Parse(named(256)), IsOk());
  EXPECT_EQ(Refused(named(257)).param, "messages[0].name");
  // Together, however they are spread.
  RequestLimits limits = Limits();
  limits.max_template_values = 500;
  const std::string numbers = Repeated("1", 300);
  const std::string call = Call(absl::StrCat(R"({"k":[)", numbers, "]}"));
  EXPECT_THAT(Parse(call, "", limits), IsOk());
  EXPECT_EQ(Refused(absl::StrCat(call, ",", call), "", limits).param, "messages[1].tool_calls[0]");
  EXPECT_EQ(Refused(call,
                    absl::StrCat(R"("tools":[{"function":{"name":"f","parameters":{"enum":[)",
                                 Repeated("1", 300), "]}}}]"),
                    limits)
                .param,
            "tools");
  EXPECT_EQ(Refused(kHi, absl::StrCat(R"("chat_template_kwargs":{"k":[)", Repeated("1", 501), "]}"),
                    limits)
                .param,
            "chat_template_kwargs");
}

// SEC-2: nesting that recursion could not bear, where a string hides it from the body's own check.
TEST(ChatRequestTest, DeepArgumentsAreRefused) {
  for (const size_t depth : {60u, 100u, 3'000u, 100'000u, 1'000'000u}) {
    const std::string deep =
        absl::StrCat("{\\\"k\\\":", std::string(depth, '['), std::string(depth, ']'), "}");
    const ApiError error = Refused(Call(absl::StrCat("\"", deep, "\"")));
    EXPECT_EQ(error.param, "messages[0].tool_calls[0].function.arguments");
    EXPECT_THAT(error.message, HasSubstr("too deep"));
  }
}

// A random JSON value as text with white space in random places.
std::string RandomJson(std::mt19937& rng, int depth) {
  const auto space = [&rng] { return std::string(rng() % 3, " \n\t\r"[rng() % 4]); };
  std::string out = space();
  const auto kind = rng() % (depth > 0 ? 8 : 6);
  static constexpr const char* kScalars[] = {
      "null", "true", "-1.5e3", "\"\"", R"("a\"]},:[{\\")", "\"\u00e9\\u0041,\""};
  if (kind < 6) {
    out += kScalars[kind];
  } else {
    out += kind == 6 ? "[" : "{";
    const auto count = rng() % 4;
    for (size_t i = 0; i < count; ++i) {
      if (i > 0) out += ",";
      if (kind == 7) absl::StrAppend(&out, space(), "\"k\\\"", i, "\\u0041\"", space(), ":");
      out += RandomJson(rng, depth - 1);
    }
    out += space() + (kind == 6 ? "]" : "}");
  }
  return out + space();
}

TEST(JsonFieldsTest, PartsOfATextAreThoseThatAParserFinds) {
  constexpr uint32_t kSeed = 20240229;
  std::mt19937 rng(kSeed);
  size_t parts = 0;
  for (int i = 0; i < 3000; ++i) {
    const std::string text = RandomJson(rng, 4);
    const auto parsed = nlohmann::ordered_json::parse(text);
    SCOPED_TRACE(absl::StrCat("seed ", kSeed, ": ", text));
    if (parsed.is_array()) {
      const auto elements = RawElements(text);
      ASSERT_EQ(elements.size(), parsed.size());
      for (size_t e = 0; e < elements.size(); ++e) {
        EXPECT_EQ(nlohmann::ordered_json::parse(elements[e]), parsed[e]);
        ++parts;
      }
    } else if (parsed.is_object()) {
      const auto members = RawMembers(text);
      ASSERT_EQ(members.size(), parsed.size());
      size_t m = 0;
      for (const auto& [name, value] : parsed.items()) {
        EXPECT_EQ(members[m].name, name);
        EXPECT_EQ(nlohmann::ordered_json::parse(members[m].value), value);
        EXPECT_EQ(RawValue(text, name), members[m].value);
        ++m;
        ++parts;
      }
      EXPECT_EQ(RawValue(text, "none"), "");
    }
  }
  EXPECT_GT(parts, 500u);
}

}  // namespace
}  // namespace lynx::router
