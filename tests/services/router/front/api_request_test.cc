#include "services/router/front/api_request.h"

#include <algorithm>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "services/router/front/api_error.h"
#include "tests/support/status_matchers.h"

namespace lynx::router {
namespace {

using ::lynx::testing::IsOk;
using ::lynx::testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr int32_t kVocab = 4096;

RequestLimits Limits() {
  RequestLimits limits;
  limits.model_names = {"m"};
  limits.vocab_size = kVocab;
  limits.max_context_tokens = 2048;
  limits.end_token_ids = {4095, 4093};
  limits.experts = 64;
  limits.experts_per_token = 8;
  limits.policies = {"lynx", "vote", "budget"};
  return limits;
}

// A completion body with `fields` added; `fields` may be empty.
std::string Completion(const std::string& fields) {
  return absl::StrCat(R"({"model":"m","prompt":"hi")", fields.empty() ? "" : ",", fields, "}");
}
std::string Chat(const std::string& fields) {
  return absl::StrCat(R"({"model":"m","messages":[{"role":"user","content":"hi"}])",
                      fields.empty() ? "" : ",", fields, "}");
}
std::string ChatWith(const std::string& messages) {
  return absl::StrCat(R"({"model":"m","messages":[)", messages, "]}");
}

// The error of a refused body: HTTP status, `param`, `code`, `message`.
ApiError Refusal(const absl::StatusOr<ApiRequest>& result) {
  if (!result.ok()) return ToApiError(result.status());
  ADD_FAILURE() << "the request was accepted";
  return {};
}
ApiError CompletionRefusal(const std::string& fields) {
  return Refusal(ParseCompletionRequest(Completion(fields), Limits()));
}
ApiError ChatRefusal(const std::string& fields) {
  return Refusal(ParseChatRequest(Chat(fields), Limits()));
}
ApiError PromptRefusal(const std::string& prompt) {
  return Refusal(
      ParseCompletionRequest(absl::StrCat(R"({"model":"m","prompt":)", prompt, "}"), Limits()));
}
ApiError MessageRefusal(const std::string& messages) {
  return Refusal(ParseChatRequest(ChatWith(messages), Limits()));
}

TEST(ApiRequestTest, AMinimalBodyGetsTheModelsDefaults) {
  RequestLimits limits = Limits();
  limits.temperature = 0.6F;
  limits.top_k = 20;
  auto request = ParseCompletionRequest(Completion(""), limits);
  ASSERT_THAT(request, IsOk());
  EXPECT_EQ(std::get<std::string>(request->prompts.at(0)), "hi");
  EXPECT_FLOAT_EQ(request->sampling.temperature(), 0.6F);
  EXPECT_FLOAT_EQ(request->sampling.top_p(), 1);
  EXPECT_EQ(request->sampling.top_k(), 20);
  EXPECT_EQ(request->sampling.top_logprobs(), -1);
  EXPECT_FLOAT_EQ(request->sampling.repetition_penalty(), 1);
  EXPECT_FALSE(request->max_tokens.has_value());
  EXPECT_EQ(request->n, 1);
  EXPECT_FALSE(request->stream);
}

TEST(ApiRequestTest, EveryFieldReachesTheSampler) {
  auto request = ParseCompletionRequest(
      Completion(R"("max_tokens":7,"temperature":1.5,"top_p":0.25,"top_k":5,"min_p":0.125,"n":2,
        "stop":["a","b"],"seed":-3,"stream":true,"stream_options":{"include_usage":true},
        "logprobs":2,"echo":true,"presence_penalty":-2,"frequency_penalty":2,
        "repetition_penalty":1.25,"logit_bias":{"7":-100,"3":100},"min_tokens":2,
        "stop_token_ids":[9],"user":"someone")"),
      Limits());
  ASSERT_THAT(request, IsOk());
  const proto::SamplingParams& sampling = request->sampling;
  EXPECT_EQ(request->max_tokens, 7);
  EXPECT_FLOAT_EQ(sampling.temperature(), 1.5F);
  EXPECT_FLOAT_EQ(sampling.top_p(), 0.25F);
  EXPECT_EQ(sampling.top_k(), 5);
  EXPECT_FLOAT_EQ(sampling.min_p(), 0.125F);
  EXPECT_EQ(request->n, 2);
  EXPECT_THAT(request->stop, ElementsAre("a", "b"));
  EXPECT_EQ(sampling.seed(), static_cast<uint64_t>(-3));
  EXPECT_TRUE(request->stream);
  EXPECT_TRUE(request->include_usage);
  EXPECT_EQ(sampling.top_logprobs(), 2);
  EXPECT_TRUE(sampling.prompt_logprobs());
  EXPECT_TRUE(request->echo);
  EXPECT_FLOAT_EQ(sampling.presence_penalty(), -2);
  EXPECT_FLOAT_EQ(sampling.frequency_penalty(), 2);
  EXPECT_FLOAT_EQ(sampling.repetition_penalty(), 1.25F);
  ASSERT_EQ(sampling.logit_bias_size(), 2);
  EXPECT_EQ(sampling.logit_bias(0).token(), 3);
  EXPECT_FLOAT_EQ(sampling.logit_bias(1).bias(), -100);
  EXPECT_EQ(sampling.min_new_tokens(), 2);
  EXPECT_THAT(sampling.stop_token_ids(), ElementsAre(9, 4093, 4095));
}

TEST(ApiRequestTest, AllFourFormsOfAPromptAreTaken) {
  auto parse = [](const std::string& prompt) {
    auto request =
        ParseCompletionRequest(absl::StrCat(R"({"model":"m","prompt":)", prompt, "}"), Limits());
    EXPECT_THAT(request, IsOk()) << prompt;
    return request->prompts;
  };
  EXPECT_EQ(std::get<std::string>(parse(R"("x")").at(0)), "x");
  const auto strings = parse(R"(["x","y"])");
  ASSERT_EQ(strings.size(), 2u);
  EXPECT_EQ(std::get<std::string>(strings[1]), "y");
  EXPECT_THAT(std::get<std::vector<TokenId>>(parse("[1,4095]").at(0)), ElementsAre(1, 4095));
  const auto lists = parse("[[1],[2,3]]");
  ASSERT_EQ(lists.size(), 2u);
  EXPECT_THAT(std::get<std::vector<TokenId>>(lists[1]), ElementsAre(2, 3));
}

TEST(ApiRequestTest, EmptyAndMixedPromptsAreRefused) {
  for (const char* prompt :
       {"null", "\"\"", "[]", "[\"\"]", "[[]]", "[\"a\",[1]]", "[[1],\"a\"]", "[1,\"a\"]",
        "[[1],2]", "5", "true", "{}", "[null]", "[1.5]", "[[\"a\"]]"}) {
    SCOPED_TRACE(prompt);
    const ApiError error = PromptRefusal(prompt);
    EXPECT_EQ(error.http_status, 400);
    EXPECT_EQ(error.param, "prompt");
  }
}

// API-4: ids were used as raw indices; negatives and wrapped values passed the upper bound.
TEST(ApiRequestTest, TokenIdsOutsideTheVocabularyAreRefusedByFieldName) {
  for (const char* id : {"-1", "4096", "4294967295", "4294967296", "9223372036854775808",
                         "-9223372036854775808", "18446744073709551615", "1e30", "1.0"}) {
    SCOPED_TRACE(id);
    for (const ApiError& error :
         {PromptRefusal(absl::StrCat("[", id, "]")),
          PromptRefusal(absl::StrCat("[[1],[2,", id, "]]")),
          CompletionRefusal(absl::StrCat(R"("stop_token_ids":[)", id, R"(],"min_tokens":1)")),
          CompletionRefusal(absl::StrCat(R"("logit_bias":{")", id, R"(":5})"))}) {
      EXPECT_EQ(error.http_status, 400);
      EXPECT_THAT(error.param, ::testing::AnyOf("prompt", "stop_token_ids", "logit_bias"));
      EXPECT_THAT(error.message, HasSubstr(error.param));
    }
  }
  for (const char* key : {"", " 5", "05", "+5", "a", "5.0"}) {
    EXPECT_EQ(CompletionRefusal(absl::StrCat(R"("logit_bias":{")", key, R"(":5})")).param,
              "logit_bias")
        << key;
  }
}

TEST(ApiRequestTest, WrongTypesAndRangesAreRefusedByFieldName) {
  const std::pair<const char*, std::vector<const char*>> kCases[] = {
      {"max_tokens", {"0", "-1", "1.5", "\"5\"", "true", "[]", "9223372036854775808"}},
      {"max_completion_tokens", {"0", "-7", "{}"}},
      {"temperature", {"-0.1", "2.1", "\"1\"", "true", "[1]"}},
      {"top_p", {"0", "-1", "1.01", "1e-60", "\"x\""}},
      {"top_k", {"-2", "1.5", "\"1\"", "2147483648"}},
      {"min_p", {"-0.1", "1.1", "{}"}},
      {"n", {"0", "129", "-1", "1.0", "\"2\""}},
      {"stop", {"5", "{}", "[5]", "[\"\"]", "\"\"", "true", "[[\"a\"]]"}},
      {"seed", {"1.5", "\"1\"", "9223372036854775808", "true"}},
      {"stream", {"1", "\"true\"", "[]"}},
      {"stream_options", {"5", "[]", "\"x\"", "{}"}},  // {}: not without stream.
      {"logprobs", {"-1", "21", "true", "\"1\""}},
      {"echo", {"1", "\"yes\""}},
      {"presence_penalty", {"-2.1", "2.1", "\"0\""}},
      {"frequency_penalty", {"-2.1", "2.1", "[]"}},
      {"repetition_penalty", {"0", "-1", "11", "\"1\""}},
      {"logit_bias", {"[]", "5", "{\"1\":101}", "{\"1\":-101}", "{\"1\":\"5\"}", "{\"1\":null}"}},
      {"ignore_eos", {"1", "\"x\""}},
      {"min_tokens", {"-1", "1.5", "99999999999"}},
      {"stop_token_ids", {"5", "[\"1\"]", "{}", "[null]"}},
      {"lynx", {"5", "[]", "true"}},
  };
  for (const auto& [field, values] : kCases) {
    for (const char* value : values) {
      SCOPED_TRACE(absl::StrCat(field, " = ", value));
      const ApiError error = CompletionRefusal(absl::StrCat("\"", field, "\":", value));
      EXPECT_EQ(error.http_status, 400);
      EXPECT_EQ(error.type, "invalid_request_error");
      EXPECT_EQ(error.param, field);
      EXPECT_THAT(error.message, HasSubstr(field));
    }
  }
}

TEST(ApiRequestTest, ValuesOnTheBoundsAreTaken) {
  for (const char* fields : {R"("temperature":0)",
                             R"("temperature":2)",
                             R"("top_p":1)",
                             R"("top_p":1e-6)",
                             R"("top_k":-1)",
                             R"("top_k":0)",
                             R"("top_k":2147483647)",
                             R"("min_p":1)",
                             R"("n":128)",
                             R"("seed":9223372036854775807)",
                             R"("seed":-9223372036854775808)",
                             R"("logprobs":20)",
                             R"("logprobs":0)",
                             R"("presence_penalty":-2,"frequency_penalty":2)",
                             R"("stop":[])",
                             R"("logit_bias":{"0":-100,"4095":100})",
                             R"("logit_bias":{})",
                             R"("stop_token_ids":[])",
                             R"("max_tokens":5,"min_tokens":5)",
                             R"("max_tokens":5,"max_completion_tokens":5)",
                             R"("max_tokens":0,"echo":true)"}) {
    EXPECT_THAT(ParseCompletionRequest(Completion(fields), Limits()), IsOk()) << fields;
  }
}

TEST(ApiRequestTest, AllSpellingsOfNoTopKReachTheNodesAsOne) {
  for (const char* value : {"-1", "0", "4096", "100000"}) {
    auto request = ParseCompletionRequest(Completion(absl::StrCat(R"("top_k":)", value)), Limits());
    ASSERT_THAT(request, IsOk());
    EXPECT_EQ(request->sampling.top_k(), 0) << value;
  }
}

TEST(ApiRequestTest, NullMeansAbsentForEveryField) {
  for (const char* field : {"max_tokens",
                            "max_completion_tokens",
                            "temperature",
                            "top_p",
                            "top_k",
                            "min_p",
                            "n",
                            "stop",
                            "seed",
                            "stream",
                            "stream_options",
                            "logprobs",
                            "echo",
                            "presence_penalty",
                            "frequency_penalty",
                            "repetition_penalty",
                            "logit_bias",
                            "ignore_eos",
                            "min_tokens",
                            "stop_token_ids",
                            "user",
                            "tools",
                            "tool_choice",
                            "functions",
                            "response_format",
                            "suffix",
                            "best_of",
                            "audio",
                            "lynx"}) {
    const std::string with_null = absl::StrCat("\"", field, "\":null");
    EXPECT_THAT(ParseCompletionRequest(Completion(with_null), Limits()), IsOk()) << field;
    EXPECT_THAT(ParseChatRequest(Chat(with_null), Limits()), IsOk()) << field;
  }
}

TEST(ApiRequestTest, KnownFieldsThatAreNotServedAreRefusedByName) {
  for (const auto& [field, value] : std::vector<std::pair<std::string, std::string>>{
           {"tool_choice", R"({"type":"function"})"},
           {"parallel_tool_calls", "false"},
           {"functions", R"([{"name":"f"}])"},
           {"function_call", R"("auto")"},
           {"response_format", R"({"type":"json_object"})"},
           {"response_format", R"({"type":"json_schema","json_schema":{}})"},
           {"response_format", R"({})"},
           {"suffix", R"("tail")"},
           {"best_of", "2"},
           {"audio", "{}"},
           {"modalities", R"(["text","audio"])"},
           {"prediction", R"({"type":"content","content":"x"})"},
           {"web_search_options", "{}"},
           {"reasoning_effort", R"("high")"},
           {"guided_json", "{}"},
           {"guided_regex", R"("a+")"},
           {"structured_outputs", "{}"},
           {"use_beam_search", "true"},
           {"prompt_logprobs", "1"}}) {
    SCOPED_TRACE(field);
    for (const ApiError& error : {CompletionRefusal(absl::StrCat("\"", field, "\":", value)),
                                  ChatRefusal(absl::StrCat("\"", field, "\":", value))}) {
      EXPECT_EQ(error.http_status, 400);
      EXPECT_EQ(error.param, field);
      EXPECT_EQ(error.code, "unsupported_parameter");
    }
  }
  // These are chat's alone.
  for (const char* fields :
       {R"("tools":[{"type":"function","function":{"name":"f"}}])", R"("tool_choice":"auto")",
        R"("chat_template_kwargs":{"k":1})", R"("documents":[{"text":"x"}])"}) {
    EXPECT_EQ(CompletionRefusal(fields).code, "unsupported_parameter") << fields;
  }
  EXPECT_EQ(CompletionRefusal(R"("n":2,"best_of":1)").param, "best_of");
  EXPECT_EQ(ChatRefusal(R"("echo":true)").param, "echo");
}

TEST(ApiRequestTest, FieldsThatAskForWhatHappensAnywayAreTaken) {
  for (const char* fields :
       {R"("tools":[],"tool_choice":"none")", R"("functions":[],"function_call":"none")",
        R"("response_format":{"type":"text"})", R"("suffix":"")", R"("best_of":1)",
        R"("modalities":["text"])", R"("lynx":{"policy":"exact"})", R"("lynx":{})",
        R"("user":"u","store":true,"metadata":{"a":"b"},"service_tier":"auto")",
        R"("parallel_tool_calls":true,"made_up":[[[1]]])"}) {
    EXPECT_THAT(ParseCompletionRequest(Completion(fields), Limits()), IsOk()) << fields;
    EXPECT_THAT(ParseChatRequest(Chat(fields), Limits()), IsOk()) << fields;
  }
}

TEST(ApiRequestTest, APolicyTravelsInItsCanonicalForm) {
  for (const auto& [fields, policy] : std::vector<std::pair<std::string, std::string>>{
           {"", ""},
           {R"("lynx":null)", ""},
           {R"("lynx":{})", ""},
           {R"("lynx":{"policy":null,"alpha":null})", ""},
           {R"("lynx":{"policy":"exact"})", "exact"},
           {R"("lynx":{"policy":"lynx"})", "lynx"},
           {R"("lynx":{"policy":"lynx","beta":4,"alpha":3.0,"floor":1})",
            "lynx:alpha=3,beta=4,floor=1"},
           {R"("lynx":{"policy":"lynx","alpha":1e-1,"beta":"none","self_scaled":true})",
            "lynx:alpha=0.1,beta=none,floor=0,self_scaled=true"},
           {R"("lynx":{"policy":"lynx","alpha":2,"beta":null})", "lynx:alpha=2,floor=0"},
           {R"("lynx":{"policy":"lynx","ep_balance":0.01})", "lynx:ep_balance=0.01"},
           {R"("lynx":{"policy":"vote","M":20})", "vote:M=20,floor=0"},
           {R"("lynx":{"policy":"budget","fraction":0.5,"floor":8})",
            "budget:fraction=0.5,floor=8"}}) {
    const auto completion = ParseCompletionRequest(Completion(fields), Limits());
    ASSERT_THAT(completion, IsOk()) << fields;
    EXPECT_EQ(completion->sampling.policy(), policy) << fields;
    const auto chat = ParseChatRequest(Chat(fields), Limits());
    ASSERT_THAT(chat, IsOk()) << fields;
    EXPECT_EQ(chat->sampling.policy(), policy) << fields;
  }
}

TEST(ApiRequestTest, ACacheSaltIsATextOfSomeBytes) {
  const std::string longest(256, 's');
  for (const auto& [field, salt] : std::vector<std::pair<std::string, std::string>>{
           {R"("cache_salt":null)", ""},
           {R"("cache_salt":"tenant 7")", "tenant 7"},
           {R"("cache_salt":")" + longest + "\"", longest}}) {
    const auto completion = ParseCompletionRequest(Completion(field), Limits());
    ASSERT_THAT(completion, IsOk()) << field;
    EXPECT_EQ(completion->cache_salt, salt);
    const auto chat = ParseChatRequest(Chat(field), Limits());
    ASSERT_THAT(chat, IsOk()) << field;
    EXPECT_EQ(chat->cache_salt, salt);
  }
  for (const std::string& bad :
       {std::string("\"\""), "\"" + longest + "s\"", std::string("7"), std::string("[\"a\"]")}) {
    const auto chat = ParseChatRequest(Chat("\"cache_salt\":" + bad), Limits());
    EXPECT_THAT(chat,
                testing::StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("'cache_salt'")));
  }
}

TEST(ApiRequestTest, ABadPolicyIsRefusedByItsField) {
  for (const auto& [lynx, param, message] :
       std::vector<std::tuple<std::string, std::string, std::string>>{
           {R"("exact")", "lynx", "an object"},
           {R"({"policy":5})", "lynx.policy", "a string"},
           {R"({"alpha":3})", "lynx.policy", "required"},
           {R"({"policy":"linx"})", "lynx.policy", "one of lynx, vote, budget"},
           {R"({"policy":"oea","k0":4})", "lynx.policy", "'oea'"},
           {R"({"policy":"auto"})", "lynx.policy", "'auto'"},
           {R"({"policy":""})", "lynx.policy", "''"},
           {R"({"other":1})", "lynx.other", "not known"},
           {R"({"other":null})", "lynx.other", "not known"},
           {R"({"policy":"lynx","alhpa":null})", "lynx.alhpa", "not known"},
           {R"({"policy":"lynx","gamma":1})", "lynx.gamma", "not known"},
           {R"({"policy":"lynx","gamma":[1]})", "lynx.gamma", "not known"},
           {R"({"policy":"lynx","k0":4})", "lynx.k0", "takes no 'k0'"},
           {R"({"policy":"exact","alpha":3})", "lynx.alpha", "takes no 'alpha'"},
           {R"({"policy":"lynx","alpha":"3"})", "lynx.alpha", "a number"},
           {R"({"policy":"lynx","alpha":[3]})", "lynx.alpha", "a number"},
           {R"({"policy":"lynx","alpha":0})", "lynx.alpha", "above 0"},
           {R"({"policy":"lynx","alpha":-1})", "lynx.alpha", "above 0"},
           {R"({"policy":"lynx","alpha":1e300})", "lynx.alpha", "at most"},
           {R"({"policy":"lynx","beta":1.5})", "lynx.beta", "an integer"},
           {R"({"policy":"lynx","beta":-1})", "lynx.beta", "at least 0"},
           {R"({"policy":"lynx","beta":"all"})", "lynx.beta", "none"},
           {R"({"policy":"lynx","beta":99999999999999999999})", "lynx.beta", "an integer"},
           {R"({"policy":"lynx","floor":true})", "lynx.floor", "an integer"},
           {R"({"policy":"lynx","self_scaled":1})", "lynx.self_scaled", "a boolean"},
           // These need the model's N and k.
           {R"({"policy":"lynx","floor":9})", "lynx.floor", "[0, 8]"},
           {R"({"policy":"vote","M":7})", "lynx.M", "[8, 64]"},
           {R"({"policy":"vote","M":65})", "lynx.M", "[8, 64]"},
           {R"({"policy":"budget","fraction":1.01})", "lynx.fraction", "at most 1"},
           // These are about more than one.
           {R"({"policy":"vote"})", "lynx", "needs M"},
           {R"({"policy":"budget","M":9,"fraction":0.5})", "lynx", "not both"}}) {
    SCOPED_TRACE(lynx);
    for (const ApiError& error : {CompletionRefusal(absl::StrCat("\"lynx\":", lynx)),
                                  ChatRefusal(absl::StrCat("\"lynx\":", lynx))}) {
      EXPECT_EQ(error.http_status, 400);
      EXPECT_EQ(error.param, param);
      EXPECT_THAT(error.message, HasSubstr(message));
    }
  }
}

TEST(ApiRequestTest, OnlyExactIsAllowedUnlessTheOperatorSaysMore) {
  RequestLimits limits = Limits();
  limits.policies.clear();
  EXPECT_THAT(ParseCompletionRequest(Completion(R"("lynx":{"policy":"exact"})"), limits), IsOk());
  const ApiError error =
      Refusal(ParseCompletionRequest(Completion(R"("lynx":{"policy":"lynx"})"), limits));
  EXPECT_EQ(error.param, "lynx.policy");
  EXPECT_EQ(error.code, "unsupported_parameter");
}

TEST(ApiRequestTest, ADenseModelIsExact) {
  RequestLimits limits = Limits();
  limits.experts = limits.experts_per_token = 0;
  EXPECT_THAT(ParseChatRequest(Chat(R"("lynx":{"policy":"exact"})"), limits), IsOk());
  const ApiError error = Refusal(ParseChatRequest(Chat(R"("lynx":{"policy":"lynx"})"), limits));
  EXPECT_EQ(error.param, "lynx.policy");
  EXPECT_THAT(error.message, HasSubstr("no experts"));
}

TEST(ApiRequestTest, TheClientsTextInAPolicyIsBounded) {
  const std::string wide(10'000, 'x');
  EXPECT_LT(CompletionRefusal(absl::StrCat(R"("lynx":{"policy":")", wide, "\"}")).message.size(),
            300u);
  const ApiError key =
      CompletionRefusal(absl::StrCat(R"("lynx":{"policy":"lynx",")", wide, "\":1}"));
  EXPECT_LT(key.message.size() + key.param.size(), 300u);
}

TEST(ApiRequestTest, AnUnknownModelIsNotFound) {
  auto refused = Refusal(ParseCompletionRequest(R"({"model":"x","prompt":"hi"})", Limits()));
  EXPECT_EQ(refused.http_status, 404);
  EXPECT_EQ(refused.code, "model_not_found");
  EXPECT_EQ(refused.param, "model");
  refused = Refusal(ParseCompletionRequest(
      absl::StrCat(R"({"model":")", std::string(10'000, 'x'), R"(","prompt":"hi"})"), Limits()));
  EXPECT_EQ(refused.http_status, 404);
  EXPECT_LT(refused.message.size(), 300u) << "the client's text is echoed without a bound";
  for (const char* model : {"", R"("model":5,)", R"("model":null,)", R"("model":[],)"}) {
    refused =
        Refusal(ParseCompletionRequest(absl::StrCat("{", model, R"("prompt":"hi"})"), Limits()));
    EXPECT_EQ(refused.http_status, 400) << model;
    EXPECT_EQ(refused.param, "model") << model;
  }
}

TEST(ApiRequestTest, MalformedJsonIsRefused) {
  for (const char* body :
       {"", " ", "{", "[]", "null", "5", "\"x\"", "{\"model\":}", "{'model':'m'}",
        "{\"model\":\"m\"}{}", "{\"model\":\"m\",}", "{\"model\":\"\\ud800\",\"prompt\":\"x\"}",
        "{\"model\":\"m\",\"prompt\":\"a\nb\"}", "nan", "{\"model\":\"m\",\"temperature\":NaN}"}) {
    const ApiError error = Refusal(ParseCompletionRequest(body, Limits()));
    EXPECT_EQ(error.http_status, 400) << body;
  }
}

// STR-3: the error handler put bad bytes from the body into its own message and threw again.
TEST(ApiRequestTest, InvalidUtf8IsRefusedWithACleanMessage) {
  for (const std::string& body :
       {std::string("{\"model\":\"\xff\",\"prompt\":\"x\"}"),
        std::string("{\"model\":\"m\",\"prompt\":\"x\",\"unknown\":\"\xc0\"}"),
        std::string("{\"model\":\"m\",\"prompt\":\"\xed\xa0\x80\"}"), std::string("\xff")}) {
    const ApiError error = Refusal(ParseCompletionRequest(body, Limits()));
    EXPECT_EQ(error.http_status, 400);
    EXPECT_THAT(error.message, HasSubstr("UTF-8"));
  }
}

// SEC-2: deep nesting overflowed the stack of a JSON library.
TEST(ApiRequestTest, DeepNestingAndHugeNumbersAreRefused) {
  for (int depth : {65, 100, 3'000, 100'000, 1'000'000}) {
    const std::string deep =
        std::string(static_cast<size_t>(depth), '[') + std::string(static_cast<size_t>(depth), ']');
    for (const char* field : {"tools", "unknown", "response_format"}) {
      const ApiError error = CompletionRefusal(absl::StrCat("\"", field, "\":", deep));
      EXPECT_EQ(error.http_status, 400);
      EXPECT_THAT(error.message, HasSubstr("too deep"));
    }
    EXPECT_EQ(
        Refusal(ParseCompletionRequest(deep.substr(0, deep.size() / 2), Limits())).http_status,
        400);
  }
  EXPECT_EQ(CompletionRefusal(R"("temperature":1e999)").http_status, 400);
  EXPECT_EQ(CompletionRefusal(R"("unknown":-1e999)").http_status, 400);
  EXPECT_EQ(
      CompletionRefusal(absl::StrCat(R"("max_tokens":)", std::string(10'000, '9'))).http_status,
      400);
  std::string keys;
  for (int i = 0; i < 1'000'001; ++i) absl::StrAppend(&keys, i > 0 ? "," : "", "\"k", i, "\":0");
  EXPECT_EQ(CompletionRefusal(keys).http_status, 400);
}

TEST(ApiRequestTest, OfARepeatedKeyTheLastOneCounts) {
  auto request = ParseCompletionRequest(Completion(R"("max_tokens":3,"max_tokens":9)"), Limits());
  ASSERT_THAT(request, IsOk());
  EXPECT_EQ(request->max_tokens, 9);
}

TEST(ApiRequestTest, StopListsAreBounded) {
  std::string list;
  for (int i = 0; i < 17; ++i) absl::StrAppend(&list, i > 0 ? "," : "", "\"s", i, "\"");
  EXPECT_EQ(CompletionRefusal(absl::StrCat(R"("stop":[)", list, "]")).param, "stop");
  EXPECT_EQ(CompletionRefusal(absl::StrCat(R"("stop":")", std::string(1025, 'x'), "\"")).param,
            "stop");
}

TEST(ApiRequestTest, PromptsTimesChoicesIsBounded) {
  std::string prompts = "[";
  for (int i = 0; i < 65; ++i) absl::StrAppend(&prompts, i > 0 ? "," : "", "\"p\"");
  const ApiError error = Refusal(ParseCompletionRequest(
      absl::StrCat(R"({"model":"m","n":2,"prompt":)", prompts, "]}"), Limits()));
  EXPECT_EQ(error.http_status, 400);
  EXPECT_EQ(error.param, "prompt");
}

TEST(ApiRequestTest, ASeedIsDrawnWhenTheClientGivesNone) {
  auto first = ParseCompletionRequest(Completion(""), Limits());
  auto second = ParseCompletionRequest(Completion(""), Limits());
  ASSERT_THAT(first, IsOk());
  ASSERT_THAT(second, IsOk());
  EXPECT_NE(first->sampling.seed(), second->sampling.seed());
}

// TOK-2: only one of several end tokens was honoured.
TEST(ApiRequestTest, AllEndTokensStopUnlessIgnored) {
  auto request = ParseChatRequest(Chat(R"("temperature":0.5)"), Limits());
  ASSERT_THAT(request, IsOk());
  EXPECT_THAT(request->sampling.stop_token_ids(), ElementsAre(4093, 4095));
  request = ParseChatRequest(Chat(R"("ignore_eos":true,"stop_token_ids":[7,7])"), Limits());
  ASSERT_THAT(request, IsOk());
  EXPECT_THAT(request->sampling.stop_token_ids(), ElementsAre(7));
}

// API-1: absent and null stream_options crashed a server.
TEST(ApiRequestTest, UsageChunkIsAskedForOnlyByIncludeUsageTrue) {
  for (const auto& [fields, wanted] : std::vector<std::pair<std::string, bool>>{
           {R"("stream":true)", false},
           {R"("stream":true,"stream_options":null)", false},
           {R"("stream":true,"stream_options":{})", false},
           {R"("stream":true,"stream_options":{"include_usage":null})", false},
           {R"("stream":true,"stream_options":{"include_usage":false})", false},
           {R"("stream":true,"stream_options":{"include_usage":true})", true}}) {
    auto request = ParseChatRequest(Chat(fields), Limits());
    ASSERT_THAT(request, IsOk()) << fields;
    EXPECT_EQ(request->include_usage, wanted) << fields;
  }
  EXPECT_EQ(ChatRefusal(R"("stream":true,"stream_options":{"include_usage":1})").param,
            "stream_options.include_usage");
}

TEST(ApiRequestTest, ChatLogprobsAreABooleanAndACount) {
  auto request = ParseChatRequest(Chat(R"("logprobs":true,"top_logprobs":20)"), Limits());
  ASSERT_THAT(request, IsOk());
  EXPECT_EQ(request->logprobs, 20);
  request = ParseChatRequest(Chat(R"("logprobs":true)"), Limits());
  ASSERT_THAT(request, IsOk());
  EXPECT_EQ(request->logprobs, 0);
  request = ParseChatRequest(Chat(R"("logprobs":false,"top_logprobs":0)"), Limits());
  ASSERT_THAT(request, IsOk());
  EXPECT_FALSE(request->logprobs.has_value());
  EXPECT_EQ(ChatRefusal(R"("logprobs":1)").param, "logprobs");
  EXPECT_EQ(ChatRefusal(R"("logprobs":true,"top_logprobs":21)").param, "top_logprobs");
  EXPECT_EQ(ChatRefusal(R"("top_logprobs":2)").param, "top_logprobs");
}

// API-5: text-part arrays were refused for some roles, flattened to junk, or partly dropped.
TEST(ApiRequestTest, TextPartsJoinTheSameWayForEveryRole) {
  for (const char* role : {"system", "developer", "user", "assistant", "tool"}) {
    auto parts = ParseChatRequest(
        ChatWith(absl::StrCat(R"({"role":")", role,
                              R"(","content":[{"type":"text","text":"Reply in French."},)",
                              R"({"type":"text","text":"At most ten words."}]})")),
        Limits());
    auto plain = ParseChatRequest(
        ChatWith(absl::StrCat(R"({"role":")", role,
                              R"(","content":"Reply in French.\nAt most ten words."})")),
        Limits());
    ASSERT_THAT(parts, IsOk()) << role;
    ASSERT_THAT(plain, IsOk()) << role;
    EXPECT_EQ(parts->chat.messages.at(0).content, plain->chat.messages.at(0).content) << role;
    EXPECT_EQ(parts->chat.messages.at(0).role, plain->chat.messages.at(0).role) << role;
  }
}

TEST(ApiRequestTest, UnsupportedMessagePartsAreRefusedByTypeNeverDropped) {
  const ApiError image = MessageRefusal(
      R"({"role":"user","content":[{"type":"text","text":"a"},{"type":"image_url","image_url":{}}]})");
  EXPECT_EQ(image.http_status, 400);
  EXPECT_EQ(image.param, "messages[0].content[1].type");
  EXPECT_THAT(image.message, HasSubstr("image_url"));
  EXPECT_THAT(MessageRefusal(R"({"role":"user","content":[{"type":"hologram"}]})").message,
              HasSubstr("hologram"));
  const std::pair<const char*, const char*> kCases[] = {
      {R"({"role":"user","content":[]})", "messages[0].content"},
      {R"({"role":"user","content":null})", "messages[0].content"},
      {R"({"role":"user"})", "messages[0].content"},
      {R"({"role":"user","content":5})", "messages[0].content"},
      {R"({"role":"user","content":{}})", "messages[0].content"},
      {R"({"role":"user","content":["a"]})", "messages[0].content[0]"},
      {R"({"role":"user","content":[{}]})", "messages[0].content[0].type"},
      {R"({"role":"user","content":[{"type":5}]})", "messages[0].content[0].type"},
      {R"({"role":"user","content":[{"type":"text"}]})", "messages[0].content[0].text"},
      {R"({"role":"user","content":[{"type":"text","text":5}]})", "messages[0].content[0].text"},
      {R"({"role":"robot","content":"x"})", "messages[0].role"},
      {R"({"content":"x"})", "messages[0].role"},
      {R"({"role":5,"content":"x"})", "messages[0].role"},
      {R"("hi")", "messages[0]"},
      {R"({"role":"assistant","content":"x","function_call":{"name":"f"}})",
       "messages[0].function_call"},
      {"", "messages"},
  };
  for (const auto& [messages, param] : kCases) {
    const ApiError error = MessageRefusal(messages);
    EXPECT_EQ(error.http_status, 400) << messages;
    EXPECT_EQ(error.param, param) << messages;
  }
}

TEST(ApiRequestTest, AnAnswerOfOursCanBeSentBackAsAMessage) {
  EXPECT_THAT(ParseChatRequest(ChatWith(R"({"role":"assistant","content":"x","refusal":null,
                "annotations":[],"audio":null,"function_call":null,"tool_calls":null})"),
                               Limits()),
              IsOk());
}

TEST(ApiRequestTest, PromptAndAnswerMustFitTheContext) {
  auto request = ParseCompletionRequest(Completion(""), Limits());
  ASSERT_THAT(request, IsOk());
  EXPECT_EQ(*MaxNewTokens(*request, 2000, Limits()), 48) << "the rest of the context";
  EXPECT_EQ(*MaxNewTokens(*request, 2047, Limits()), 1);
  for (int64_t prompt_tokens : {2048, 2049, 1'000'000}) {
    const ApiError error = ToApiError(MaxNewTokens(*request, prompt_tokens, Limits()).status());
    EXPECT_EQ(error.http_status, 400);
    EXPECT_EQ(error.code, "context_length_exceeded");
    EXPECT_EQ(error.param, "prompt");
  }
  for (const char* absurd : {"49", "1000000000", "4294967297", "9223372036854775807"}) {
    request =
        ParseCompletionRequest(Completion(absl::StrCat(R"("max_tokens":)", absurd)), Limits());
    ASSERT_THAT(request, IsOk());
    const ApiError error = ToApiError(MaxNewTokens(*request, 2000, Limits()).status());
    EXPECT_EQ(error.http_status, 400);
    EXPECT_EQ(error.code, "context_length_exceeded");
    EXPECT_EQ(error.param, "max_tokens");
  }
  request = ParseCompletionRequest(Completion(R"("max_tokens":48)"), Limits());
  ASSERT_THAT(request, IsOk());
  EXPECT_EQ(*MaxNewTokens(*request, 2000, Limits()), 48);
  request = ParseCompletionRequest(Completion(R"("min_tokens":60)"), Limits());
  ASSERT_THAT(request, IsOk());
  EXPECT_EQ(ToApiError(MaxNewTokens(*request, 2000, Limits()).status()).param, "min_tokens");
}

TEST(ApiRequestTest, TokenizeTakesATextOrMessages) {
  auto text = ParseTokenizeRequest(R"({"prompt":"hi","add_special_tokens":false})", Limits());
  ASSERT_THAT(text, IsOk());
  EXPECT_EQ(std::get<std::string>(text->input), "hi");
  EXPECT_FALSE(text->add_special_tokens);
  EXPECT_THAT(ParseTokenizeRequest(R"({"model":"m","messages":[{"role":"user","content":"hi"}]})",
                                   Limits()),
              IsOk());
  for (const char* served :
       {R"("add_generation_prompt":false)", R"("continue_final_message":false)",
        R"("add_special_tokens":true)", R"("tools":[])"}) {
    EXPECT_THAT(ParseTokenizeRequest(
                    absl::StrCat(R"({"messages":[{"role":"user","content":"hi"}],)", served, "}"),
                    Limits()),
                IsOk())
        << served;
  }
  // What chat refuses since its prompt would be another one.
  for (const char* refused : {R"("continue_final_message":true)", R"("chat_template":"x")",
                              R"("parallel_tool_calls":false)", R"("functions":[{}])"}) {
    EXPECT_THAT(ParseTokenizeRequest(
                    absl::StrCat(R"({"messages":[{"role":"user","content":"hi"}],)", refused, "}"),
                    Limits()),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("is not supported here")))
        << refused;
  }
  for (const char* body : {"{}", R"({"prompt":5})", R"({"prompt":"a","messages":[]})",
                           R"({"model":"x","prompt":"a"})"}) {
    EXPECT_THAT(ParseTokenizeRequest(body, Limits()), Not(IsOk())) << body;
  }
  auto tokens = ParseDetokenizeRequest(R"({"tokens":[1,2]})", Limits());
  ASSERT_THAT(tokens, IsOk());
  EXPECT_THAT(tokens->tokens, ElementsAre(1, 2));
  for (const char* body : {"{}", R"({"tokens":5})", R"({"tokens":[-1]})", R"({"tokens":[4096]})",
                           R"({"tokens":["a"]})"}) {
    EXPECT_THAT(ParseDetokenizeRequest(body, Limits()), Not(IsOk())) << body;
  }
}

TEST(ApiErrorTest, StatusDecidesWhatTheClientHears) {
  EXPECT_EQ(ToApiError(absl::InvalidArgumentError("x")).http_status, 400);
  EXPECT_EQ(ToApiError(absl::OutOfRangeError("x")).http_status, 413);
  const ApiError busy = ToApiError(absl::ResourceExhaustedError("x"), absl::Seconds(7));
  EXPECT_EQ(busy.http_status, 429);
  EXPECT_EQ(busy.retry_after, absl::Seconds(7));
  EXPECT_EQ(ToApiError(absl::UnavailableError("x")).http_status, 503);
  EXPECT_EQ(ToApiError(absl::UnavailableError("x"), absl::ZeroDuration()).retry_after,
            absl::Seconds(1));
  EXPECT_EQ(ToApiError(absl::DeadlineExceededError("x")).http_status, 504);
  EXPECT_EQ(ToApiError(absl::InternalError("x")).http_status, 500);
  EXPECT_EQ(ToApiError(absl::DataLossError("x")).http_status, 500);
  EXPECT_EQ(ToApiError(absl::InternalError("x")).retry_after, absl::ZeroDuration());
}

}  // namespace
}  // namespace lynx::router
