#include "services/router/front/api_response.h"

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lynx::router {
namespace {

using Json = nlohmann::json;

ResponseHead Head(Api api) {
  return {.api = api,
          .id = "id-1",
          .created_s = 1700000000,
          .model = "m",
          .system_fingerprint = "fp_1"};
}

TokenLogprob Token(std::string bytes, float logprob) {
  return {.bytes = std::move(bytes), .logprob = logprob, .top = {}, .text_offset = 0};
}

TEST(ApiResponseTest, AChatAnswerHasEveryFieldOfTheSchema) {
  const Choice choices[] = {
      {.index = 0, .text = "Hello", .logprobs = {}, .finish_reason = FinishReason::kStop},
      {.index = 1, .text = "", .logprobs = {}, .finish_reason = FinishReason::kLength}};
  const Json json = Json::parse(BuildResponse(
      Head(Api::kChat), choices, {.prompt_tokens = 5, .completion_tokens = 2, .cached_tokens = 3}));
  EXPECT_EQ(json, Json::parse(R"({
    "id":"id-1","object":"chat.completion","created":1700000000,"model":"m",
    "system_fingerprint":"fp_1",
    "choices":[
      {"index":0,"message":{"role":"assistant","content":"Hello","refusal":null},
       "logprobs":null,"finish_reason":"stop"},
      {"index":1,"message":{"role":"assistant","content":"","refusal":null},
       "logprobs":null,"finish_reason":"length"}],
    "usage":{"prompt_tokens":5,"completion_tokens":2,"total_tokens":7,
      "prompt_tokens_details":{"cached_tokens":3,"audio_tokens":0},
      "completion_tokens_details":{"reasoning_tokens":0,"audio_tokens":0,
        "accepted_prediction_tokens":0,"rejected_prediction_tokens":0}}})"));
}

TEST(ApiResponseTest, ACompletionHasEveryFieldOfTheSchema) {
  const Choice choices[] = {
      {.index = 0, .text = "x", .logprobs = {}, .finish_reason = FinishReason::kLength}};
  const Json json = Json::parse(BuildResponse(Head(Api::kCompletions), choices, {}));
  EXPECT_EQ(json["object"], "text_completion");
  EXPECT_EQ(json["choices"], Json::parse(R"([
    {"index":0,"text":"x","logprobs":null,"finish_reason":"length"}])"));
}

TEST(ApiResponseTest, TheFirstChunkOfAChatChoiceHasItsRoleAndTheLastItsReason) {
  const ResponseHead head = Head(Api::kChat);
  Json json = Json::parse(BuildChunk(head, {.index = 2, .text = "", .logprobs = {}}, true, false));
  EXPECT_EQ(json["object"], "chat.completion.chunk");
  EXPECT_EQ(json["choices"], Json::parse(R"([{"index":2,
    "delta":{"role":"assistant","content":"","refusal":null},"logprobs":null,
    "finish_reason":null}])"));
  EXPECT_FALSE(json.contains("usage"));
  json = Json::parse(BuildChunk(head, {.index = 2, .text = "a", .logprobs = {}}, false, true));
  EXPECT_EQ(json["choices"][0]["delta"], Json::parse(R"({"content":"a"})"));
  ASSERT_TRUE(json.contains("usage"));
  EXPECT_TRUE(json["usage"].is_null());
  json = Json::parse(BuildChunk(
      head, {.index = 2, .text = "", .logprobs = {}, .finish_reason = FinishReason::kStop}, false,
      false));
  EXPECT_EQ(json["choices"][0]["delta"], Json::object());
  EXPECT_EQ(json["choices"][0]["finish_reason"], "stop");
}

TEST(ApiResponseTest, TextChunksAreWhatBuildChunkMakes) {
  for (Api api : {Api::kChat, Api::kCompletions}) {
    for (bool with_usage : {false, true}) {
      ResponseHead head = Head(api);
      head.model = "odd \x01 \"model\" of \xff bytes";
      const TextChunks chunks(head, 3, with_usage);
      for (const std::string text : {"a", " \x01", "\"\\/\n\r\t", "\xf0\x9f\x98\x80",
                                     "cut \xe2\x82", "\xff\xfe", "</script>\x7f", "data: x\n\n"}) {
        const Choice choice{.index = 3, .text = text, .logprobs = {}};
        EXPECT_EQ(chunks.Build(text), BuildChunk(head, choice, false, with_usage)) << text;
      }
    }
  }
}

// API-1: a usage chunk without a `choices` key was refused by strict clients.
TEST(ApiResponseTest, TheUsageChunkHasEmptyChoices) {
  for (Api api : {Api::kChat, Api::kCompletions}) {
    const Json json =
        Json::parse(BuildUsageChunk(Head(api), {.prompt_tokens = 3, .completion_tokens = 4}));
    EXPECT_EQ(json["choices"], Json::array());
    EXPECT_EQ(json["usage"]["total_tokens"], 7);
    EXPECT_EQ(json["id"], "id-1");
  }
}

// STR-7: bytes went through a JSON string, so partial characters became replacement marks.
TEST(ApiResponseTest, LogprobsKeepTheRawBytesOfPartialCharacters) {
  TokenLogprob first = Token("\xf0\x9f", -0.5F);
  first.top = {{"\xf0\x9f", -0.5F}, {"\xe2\x82", -1.5F}, {"a", -2}};
  const Choice choices[] = {{.index = 0,
                             .text = "\xf0\x9f\x98\x80",
                             .logprobs = {{first, Token("\x98\x80", -0.25F)}},
                             .finish_reason = FinishReason::kStop}};
  const Json json = Json::parse(BuildResponse(Head(Api::kChat), choices, {}));
  const Json& content = json["choices"][0]["logprobs"]["content"];
  std::string joined;
  for (const Json& entry : content) {
    for (const Json& byte : entry["bytes"]) joined += static_cast<char>(byte.get<int>());
  }
  EXPECT_EQ(joined, "\xf0\x9f\x98\x80");
  EXPECT_EQ(content[0]["token"], "bytes:\\xf0\\x9f");
  EXPECT_EQ(content[0]["logprob"], -0.5);
  EXPECT_EQ(content[0]["top_logprobs"][1]["bytes"], Json::parse("[226,130]"));
  EXPECT_EQ(content[0]["top_logprobs"][2]["token"], "a");
  EXPECT_EQ(content[1]["top_logprobs"], Json::array());
  EXPECT_TRUE(json["choices"][0]["logprobs"]["refusal"].is_null());
}

TEST(ApiResponseTest, CompletionLogprobsAreParallelLists) {
  TokenLogprob echoed{.bytes = "P", .logprob = {}, .top = {}, .text_offset = 0};
  TokenLogprob chosen = Token("b", -3);
  chosen.text_offset = 1;
  chosen.top = {{"a", -1}, {"a", -2}};  // Two tokens that read alike.
  const Choice choices[] = {{.index = 0,
                             .text = "Pb",
                             .logprobs = {{echoed, chosen}},
                             .finish_reason = FinishReason::kStop}};
  const Json json = Json::parse(BuildResponse(Head(Api::kCompletions), choices, {}));
  EXPECT_EQ(json["choices"][0]["logprobs"], Json::parse(R"({
    "tokens":["P","b"],"token_logprobs":[null,-3.0],
    "top_logprobs":[null,{"a":-1.0,"b":-3.0}],"text_offset":[0,1]})"));
}

// STR-8: minus infinity was refused by the serialiser or printed as invalid JSON.
TEST(ApiResponseTest, LogprobsAreAlwaysFinite) {
  const float infinity = std::numeric_limits<float>::infinity();
  TokenLogprob token = Token("a", -infinity);
  token.top = {{"b", -infinity}, {"c", std::nanf("")}, {"d", -1e30F}, {"e", 1e-8F}};
  const Choice choices[] = {
      {.index = 0, .text = "a", .logprobs = {{token}}, .finish_reason = FinishReason::kStop}};
  for (Api api : {Api::kChat, Api::kCompletions}) {
    const std::string body = BuildResponse(Head(api), choices, {});
    const Json json = Json::parse(body);
    const Json& logprobs = json["choices"][0]["logprobs"];
    if (api == Api::kChat) {
      EXPECT_EQ(logprobs["content"][0]["logprob"], -9999.0);
      for (const Json& other : logprobs["content"][0]["top_logprobs"]) {
        EXPECT_LE(other["logprob"].get<double>(), 0);
      }
    } else {
      EXPECT_EQ(logprobs["token_logprobs"][0], -9999.0);
      EXPECT_EQ(logprobs["top_logprobs"][0]["c"], -9999.0);
    }
  }
}

// STR-3: text that ends in the middle of a character made the JSON library throw.
TEST(ApiResponseTest, AnyBytesGiveValidJson) {
  for (const std::string& bytes :
       {std::string("\xff"), std::string("\xc0"), std::string("abc\xf0\x9f"),
        std::string("\xed\xa0\x80"), std::string("a\0b", 3), std::string("\"\\\n\x7f")}) {
    const Choice choice{.index = 0,
                        .text = bytes,
                        .logprobs = {{Token(bytes, -1)}},
                        .finish_reason = FinishReason::kLength};
    for (Api api : {Api::kChat, Api::kCompletions}) {
      EXPECT_TRUE(Json::accept(BuildResponse(Head(api), {&choice, 1}, {})));
      EXPECT_TRUE(Json::accept(BuildChunk(Head(api), choice, true, true)));
    }
    EXPECT_TRUE(Json::accept(BuildDetokenizeResponse(bytes)));
    EXPECT_TRUE(Json::accept(BuildError(ToApiError(absl::InternalError(bytes)))));
  }
}

TEST(ApiResponseTest, ErrorsHaveAllFourFields) {
  EXPECT_EQ(Json::parse(BuildError({.http_status = 400,
                                    .message = "no",
                                    .type = "invalid_request_error",
                                    .param = "n",
                                    .code = ""})),
            Json::parse(R"({"error":{"message":"no","type":"invalid_request_error","param":"n",
                            "code":null}})"));
}

TEST(ApiResponseTest, ModelsAndTokensHaveTheirShapes) {
  const std::string names[] = {"m"};
  EXPECT_EQ(Json::parse(BuildModelList(names, 5, 2048)),
            Json::parse(R"({"object":"list","data":[{"id":"m","object":"model","created":5,
                            "owned_by":"lynx","max_model_len":2048}]})"));
  EXPECT_EQ(Json::parse(BuildModel("m", 5, 2048))["id"], "m");
  const TokenId ids[] = {1, 2};
  EXPECT_EQ(Json::parse(BuildTokenizeResponse(ids, 2048)),
            Json::parse(R"({"tokens":[1,2],"count":2,"max_model_len":2048})"));
  EXPECT_EQ(Json::parse(BuildDetokenizeResponse("hi")), Json::parse(R"({"prompt":"hi"})"));
}

}  // namespace
}  // namespace lynx::router
