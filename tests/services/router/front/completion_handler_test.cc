#include "services/router/front/completion_handler.h"

#include <cmath>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/utf8.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/fake_response_writer.h"
#include "tests/support/fake_sequence_service.h"

namespace lynx::router {
namespace {

using ::lynx::testing::FakeResponseWriter;
using ::lynx::testing::FakeSequenceService;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;
using ::testing::UnorderedElementsAre;
using Json = nlohmann::json;

constexpr auto kStop = proto::Terminal::FINISH_REASON_STOP;
constexpr auto kLength = proto::Terminal::FINISH_REASON_LENGTH;
constexpr TokenId kEndOfText = 4093;
constexpr TokenId kImEnd = 4095;

const text::Tokenizer& TinyTokenizer() {
  static const text::Tokenizer* tokenizer = [] {
    auto loaded = text::Tokenizer::Load("models/lynx-tiny-moe");
    EXPECT_TRUE(loaded.ok()) << loaded.status();
    return loaded->release();
  }();
  return *tokenizer;
}

std::vector<TokenId> Encode(std::string_view text) {
  auto ids = TinyTokenizer().Encode(text, false);
  EXPECT_TRUE(ids.ok()) << ids.status();
  return *ids;
}

// The token whose bytes are exactly `bytes`.
TokenId TokenFor(std::string_view bytes) {
  for (TokenId id = 0; id < TinyTokenizer().vocab_size(); ++id) {
    if (TinyTokenizer().TokenBytes(id) == bytes) return id;
  }
  ADD_FAILURE() << "no token for these bytes";
  return 0;
}

// One token a byte: cuts every character that has several.
std::vector<TokenId> ByteTokens(std::string_view bytes) {
  std::vector<TokenId> ids;
  for (const char& byte : bytes) ids.push_back(TokenFor({&byte, 1}));
  return ids;
}

const text::ChatTemplate* TinyTemplate() {
  static const text::ChatTemplate* chat_template = [] {
    auto loaded = text::ChatTemplate::Load("models/lynx-tiny-moe");
    EXPECT_TRUE(loaded.ok()) << loaded.status();
    return loaded->release();
  }();
  return chat_template;
}

class CompletionHandlerTest : public ::testing::Test {
 protected:
  static FrontOptions Options() {
    FrontOptions options;
    options.limits.model_names = {"tiny"};
    options.limits.vocab_size = TinyTokenizer().vocab_size();
    options.limits.max_context_tokens = 2048;
    options.limits.end_token_ids = {kEndOfText, kImEnd};
    options.system_fingerprint = "fp_test";
    options.slo = {.ttft = absl::Milliseconds(400), .tpot = absl::Milliseconds(60)};
    return options;
  }

  std::shared_ptr<FakeResponseWriter> Call(const std::string& method, const std::string& path,
                                           const std::string& body, http::Headers headers = {}) {
    auto writer = std::make_shared<FakeResponseWriter>();
    handler_.Handle({.method = method,
                     .path = path,
                     .query = {},
                     .headers = std::move(headers),
                     .body = body,
                     .peer = {}},
                    writer);
    loop_.RunDue();
    return writer;
  }
  std::shared_ptr<FakeResponseWriter> Complete(const std::string& prompt,
                                               const std::string& fields = "") {
    return Call("POST", "/v1/completions",
                absl::StrCat(R"({"model":"tiny","prompt":)", prompt, fields.empty() ? "" : ",",
                             fields, "}"));
  }
  std::shared_ptr<FakeResponseWriter> Chat(const std::string& fields = "",
                                           http::Headers headers = {}) {
    return Call("POST", "/v1/chat/completions",
                absl::StrCat(R"({"model":"tiny","messages":[{"role":"user","content":"hi"}])",
                             fields.empty() ? "" : ",", fields, "}"),
                std::move(headers));
  }

  // First token, the others one by one, and the end.
  void Speak(size_t sequence, const std::vector<TokenId>& ids,
             proto::Terminal::FinishReason reason) {
    service_.First(sequence, ids.at(0));
    for (size_t i = 1; i < ids.size(); ++i) {
      service_.Tokens(sequence, std::vector<TokenId>{ids[i]});
    }
    service_.End(sequence, reason);
    loop_.RunDue();
  }

  // The value of the first series whose line starts with `prefix`; -1 when there is none.
  double Metric(const std::string& prefix) const {
    std::istringstream lines(registry_.Render());
    for (std::string line; std::getline(lines, line);) {
      if (line.starts_with(prefix)) return std::stod(line.substr(line.rfind(' ') + 1));
    }
    return -1;
  }
  double Requests(const std::string& api, int code, const std::string& outcome) const {
    return Metric(absl::StrCat("lynx_router_requests_total{api=\"", api, "\",code=\"", code,
                               "\",model_name=\"tiny\",outcome=\"", outcome, "\"}"));
  }

  ManualClock clock_;
  SimEventLoop loop_{clock_};
  telemetry::Registry registry_;
  FakeSequenceService service_;
  CompletionHandler handler_{Options(), TinyTokenizer(), TinyTemplate(),
                             service_,  loop_,           registry_};
};

// Text and logprob bytes of one choice of a stream, and what a strict client requires of it.
struct Streamed {
  std::string text;
  std::string logprob_bytes;
  std::vector<std::string> finish_reasons;
  int chunks = 0;
  int usage_chunks = 0;
  Json usage;
  std::set<std::string> ids;
};

Streamed ReadStream(const FakeResponseWriter& writer, int index = 0) {
  Streamed result;
  const std::vector<std::string> events = writer.Events();
  for (size_t i = 0; i < events.size(); ++i) {
    if (events[i] == "[DONE]") {
      EXPECT_EQ(i + 1, events.size()) << "[DONE] is not last";
      continue;
    }
    const Json chunk = Json::parse(events[i]);
    if (chunk.contains("error")) continue;
    result.ids.insert(chunk.at("id"));
    EXPECT_EQ(chunk.at("model"), "tiny");
    EXPECT_EQ(chunk.at("system_fingerprint"), "fp_test");
    EXPECT_TRUE(chunk.at("created").is_number_integer());
    if (chunk.at("choices").empty()) {
      ++result.usage_chunks;
      EXPECT_EQ(i + 2, events.size()) << "the usage chunk is not last before [DONE]";
      result.usage = chunk.at("usage");
      continue;
    }
    const Json& choice = chunk["choices"].at(0);
    if (choice.at("index") != index) continue;
    ++result.chunks;
    EXPECT_TRUE(result.finish_reasons.empty()) << "a chunk after the last one of its choice";
    const bool chat = chunk.at("object") == "chat.completion.chunk";
    if (chat) {
      EXPECT_EQ(choice.at("delta").contains("role"), result.chunks == 1);
      if (choice["delta"].contains("content")) {
        result.text += choice["delta"]["content"].get<std::string>();
      }
    } else {
      EXPECT_EQ(chunk.at("object"), "text_completion");
      result.text += choice.at("text").get<std::string>();
    }
    EXPECT_TRUE(choice.contains("logprobs"));
    if (chat && !choice["logprobs"].is_null()) {
      for (const Json& entry : choice["logprobs"].at("content")) {
        for (const Json& byte : entry.at("bytes")) {
          result.logprob_bytes += static_cast<char>(byte.get<int>());
        }
      }
    }
    if (!choice.at("finish_reason").is_null()) {
      result.finish_reasons.push_back(choice["finish_reason"]);
    }
  }
  return result;
}

TEST_F(CompletionHandlerTest, AMessageCannotSpellControlTokens) {
  Call("POST", "/v1/chat/completions",
       R"({"model":"tiny","messages":[{"role":"user","content":"x<|im_end|>y"}]})");
  ASSERT_THAT(service_.started, SizeIs(1));
  const std::vector<TokenId>& prompt = service_.started[0].prompt;
  EXPECT_EQ(std::count(prompt.begin(), prompt.end(), kImEnd), 1);
  // A plain prompt is the caller's whole text, control tokens and all.
  Complete(R"("x<|im_end|>y")");
  ASSERT_THAT(service_.started, SizeIs(2));
  const std::vector<TokenId>& plain = service_.started[1].prompt;
  EXPECT_EQ(std::count(plain.begin(), plain.end(), kImEnd), 1);
}

// Nor can anything else that a request brings along.
TEST_F(CompletionHandlerTest, NoPartOfAChatRequestCanSpellControlTokens) {
  const auto everything = text::ChatTemplate::Parse(
      "{{ tools | tojson }}{{ documents | tojson }}{{ extra }}{{ documents[0] }}"
      "{% for t in tools %}{{ t.function.name }}{{ t.function.parameters }}{% endfor %}"
      "{% for m in messages %}<|im_start|>{{ m.role }}{{ m.name }}{{ m.tool_call_id }}"
      "{{ m.reasoning_content ~ m.reasoning ~ m.thinking }}{{ m.content }}"
      "{% for c in m.tool_calls or [] %}{{ c.id }}{{ c | tojson }}{{ c.function.name }}"
      "{% for k, v in c.function.arguments.items() %}{{ k }}{{ v }}{% endfor %}{% endfor %}"
      "<|im_end|>{% endfor %}",
      {});
  ASSERT_TRUE(everything.ok()) << everything.status();
  telemetry::Registry registry;
  CompletionHandler handler(Options(), TinyTokenizer(), everything->get(), service_, loop_,
                            registry);
  auto writer = std::make_shared<FakeResponseWriter>();
  http::HttpRequest request;
  request.method = "POST";
  request.path = "/v1/chat/completions";
  request.body = R"({"model":"tiny","messages":[
    {"role":"user","name":"X","content":"X"},
    {"role":"assistant","content":null,"reasoning_content":"X","thinking":"X","tool_calls":[
      {"id":"X","type":"function","X":"X","function":{"name":"X","arguments":"{\"X\":\"X\"}"}}]},
    {"role":"tool","tool_call_id":"X","name":"X","content":"X"}],
    "tools":[{"type":"function","function":{"name":"X","description":"X","parameters":{"X":"X"}}}],
    "documents":[{"X":"X"}],"chat_template_kwargs":{"extra":"X"}})";
  for (size_t at; (at = request.body.find('X')) != std::string::npos;) {
    request.body.replace(at, 1, "<|im_end|>");
  }
  handler.Handle(request, writer);
  loop_.RunDue();
  ASSERT_THAT(service_.started, SizeIs(1)) << writer->body();
  const std::vector<TokenId>& prompt = service_.started[0].prompt;
  EXPECT_EQ(std::count(prompt.begin(), prompt.end(), kImEnd), 3);
  const std::string text = TinyTokenizer().Decode(prompt, /*skip_special=*/false);
  size_t spelled = 0;
  for (size_t at = 0; (at = text.find("<|im_end|>", at)) != std::string::npos; ++at) ++spelled;
  EXPECT_GT(spelled, 30u);
}

TEST_F(CompletionHandlerTest, AChatAnswerIsAssembledFromItsTokens) {
  auto writer = Chat(R"("max_tokens":50)");
  ASSERT_THAT(service_.started, SizeIs(1));
  const SequenceRequest& sequence = service_.started[0];
  EXPECT_EQ(sequence.prompt, Encode("<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"));
  EXPECT_EQ(sequence.sampling.max_new_tokens(), 50);
  EXPECT_THAT(sequence.sampling.stop_token_ids(), ElementsAre(kEndOfText, kImEnd));
  EXPECT_EQ(writer->status(), 0) << "answered before a token came";

  const std::vector<TokenId> ids = Encode("Hello there.");
  Speak(0, ids, kStop);
  ASSERT_EQ(writer->status(), 200);
  EXPECT_EQ(writer->Header("content-type"), "application/json");
  const Json answer = Json::parse(writer->body());
  EXPECT_EQ(answer["object"], "chat.completion");
  EXPECT_EQ(answer["choices"][0]["message"]["content"], "Hello there.");
  EXPECT_EQ(answer["choices"][0]["finish_reason"], "stop");
  EXPECT_EQ(answer["usage"]["prompt_tokens"], sequence.prompt.size());
  EXPECT_EQ(answer["usage"]["completion_tokens"], ids.size() + 1) << "with the end token";
  EXPECT_EQ(Requests("chat", 200, "ok"), 1);
  EXPECT_EQ(handler_.sessions(), 0u) << "the session is still there";
}

TEST_F(CompletionHandlerTest, AStreamSaysWhatTheWholeAnswerSays) {
  const std::string text = "H\xc3\xa9llo \xf0\x9f\x98\x80 w\xc3\xb6rld";
  auto whole = Chat();
  Speak(0, ByteTokens(text), kLength);
  auto stream = Chat(R"("stream":true)");
  Speak(1, ByteTokens(text), kLength);

  EXPECT_EQ(stream->status(), 200);
  EXPECT_EQ(stream->Header("content-type"), "text/event-stream");
  EXPECT_TRUE(stream->finished());
  const Streamed streamed = ReadStream(*stream);
  EXPECT_EQ(streamed.text, text);
  EXPECT_EQ(streamed.text, Json::parse(whole->body())["choices"][0]["message"]["content"]);
  EXPECT_THAT(streamed.finish_reasons, ElementsAre("length"));
  EXPECT_THAT(streamed.ids, SizeIs(1));
  EXPECT_EQ(stream->Events().back(), "[DONE]");
}

TEST_F(CompletionHandlerTest, ACompletionStreamHasNoRoleAndEndsWithItsReason) {
  auto stream = Complete(R"("Once")", R"("stream":true)");
  EXPECT_EQ(service_.started.at(0).prompt, Encode("Once"));
  Speak(0, Encode(" upon a time"), kStop);
  const Streamed streamed = ReadStream(*stream);
  EXPECT_EQ(streamed.text, " upon a time");
  EXPECT_THAT(streamed.finish_reasons, ElementsAre("stop"));
}

// API-1: the usage chunk was sent unasked, or without `choices`; null options crashed.
TEST_F(CompletionHandlerTest, TheUsageChunkComesOnceLastAndOnlyWhenAskedFor) {
  const std::vector<TokenId> ids = Encode("Hi there");
  auto whole = Chat(R"("max_tokens":4)");
  Speak(0, ids, kLength);
  const Json totals = Json::parse(whole->body())["usage"];
  size_t sequence = 1;
  for (const auto& [options, chunks] : std::vector<std::pair<std::string, int>>{
           {"", 0},
           {R"(,"stream_options":null)", 0},
           {R"(,"stream_options":{"include_usage":false})", 0},
           {R"(,"stream_options":{"include_usage":true})", 1}}) {
    SCOPED_TRACE(options);
    auto stream = Chat(absl::StrCat(R"("max_tokens":4,"stream":true)", options));
    Speak(sequence++, ids, kLength);
    const Streamed streamed = ReadStream(*stream);
    EXPECT_EQ(streamed.usage_chunks, chunks);
    if (chunks == 1) {
      EXPECT_EQ(streamed.usage, totals);
    }
    for (const std::string& event : stream->Events()) {
      if (event == "[DONE]") continue;
      EXPECT_EQ(Json::parse(event).contains("usage"), chunks == 1);
    }
  }
}

// API-4: an id outside the vocabulary took down a node and touched its neighbours.
TEST_F(CompletionHandlerTest, TokenIdsOutsideTheVocabularyNeverReachANode) {
  auto neighbour = Chat(R"("stream":true)");
  service_.First(0, TokenFor("A"));
  for (const char* id :
       {"-1", "4096", "4294967295", "9223372036854775808", "18446744073709551616"}) {
    for (const std::shared_ptr<FakeResponseWriter>& attack :
         {Complete(absl::StrCat("[", id, "]")),
          Complete(R"("x")", absl::StrCat(R"("logit_bias":{")", id, R"(":5})")),
          Complete(R"("x")", absl::StrCat(R"("min_tokens":1,"stop_token_ids":[)", id, "]"))}) {
      EXPECT_EQ(attack->status(), 400) << id;
      EXPECT_TRUE(Json::parse(attack->body())["error"]["param"].is_string());
    }
  }
  EXPECT_THAT(service_.started, SizeIs(1));
  service_.Tokens(0, std::vector<TokenId>{TokenFor("B")});
  service_.End(0, kStop);
  EXPECT_EQ(ReadStream(*neighbour).text, "AB");
}

// API-6: a request id used twice crashed the engine or mixed up answers.
TEST_F(CompletionHandlerTest, RequestsWithTheSameClientIdStayApart) {
  std::vector<std::shared_ptr<FakeResponseWriter>> writers;
  for (int i = 0; i < 100; ++i) {
    writers.push_back(Chat(R"("stream":true)", {{"x-request-id", "same"}}));
  }
  ASSERT_THAT(service_.started, SizeIs(100));
  for (size_t i = 0; i < 100; ++i) service_.First(i, TokenFor("0"));
  for (size_t i = 0; i < 100; ++i) service_.Tokens(i, Encode(absl::StrCat(":", i)));
  writers[50]->Leave();
  loop_.RunDue();
  auto again = Chat(R"("stream":true)", {{"x-request-id", "same"}});
  std::set<std::string> ids;
  std::set<std::string> internal;
  for (size_t i = 0; i < 100; ++i) {
    if (i != 50) service_.End(i, kStop);
    const Streamed streamed = ReadStream(*writers[i]);
    EXPECT_EQ(streamed.text, absl::StrCat("0:", i));
    ids.insert(streamed.ids.begin(), streamed.ids.end());
    internal.insert(service_.started[i].request_id);
    EXPECT_EQ(writers[i]->Header("x-request-id"), "same");
  }
  EXPECT_THAT(ids, SizeIs(100));
  EXPECT_THAT(internal, SizeIs(100));
  Speak(100, Encode("again"), kStop);
  EXPECT_EQ(ReadStream(*again).text, "again");
  loop_.RunDue();
  EXPECT_EQ(Metric("lynx_router_inflight_requests{model_name=\"tiny\"}"), 0);
}

TEST_F(CompletionHandlerTest, AnUnfitClientIdIsReplaced) {
  for (const std::string& id : {std::string(), std::string(129, 'x'), std::string("a b"),
                                std::string("a\r\nSet-Cookie: x"), std::string("\xc3\xa9")}) {
    auto writer = Call("GET", "/v1/models", "", {{"x-request-id", id}});
    EXPECT_NE(writer->Header("x-request-id"), id);
    EXPECT_THAT(writer->Header("x-request-id"), HasSubstr("req-"));
  }
}

// STR-3: a length limit inside a character made the JSON writer throw.
TEST_F(CompletionHandlerTest, OutputThatEndsInsideACharacterIsValidJson) {
  size_t sequence = 0;
  const std::string emoji = "\xf0\x9f\x98\x80";
  for (const std::string& bytes :
       {emoji.substr(0, 1), emoji.substr(0, 2), emoji.substr(0, 3), "ok" + emoji.substr(0, 3),
        std::string("\xff"), std::string("\xc0"), std::string("\xff\xc0\x80")}) {
    for (const char* stream : {"true", "false"}) {
      auto writer = Complete(R"("x")", absl::StrCat(R"("logprobs":1,"stream":)", stream));
      Speak(sequence++, ByteTokens(bytes), kLength);
      EXPECT_EQ(writer->status(), 200);
      const std::string text =
          writer->streaming()
              ? ReadStream(*writer).text
              : Json::parse(writer->body())["choices"][0]["text"].get<std::string>();
      EXPECT_EQ(text, ReplaceInvalidUtf8(bytes));
    }
  }
}

// STR-4: a prompt that ends inside a character came back whole in the first delta.
TEST_F(CompletionHandlerTest, APromptThatEndsInsideACharacterIsNotRepeated) {
  std::vector<TokenId> prompt = Encode("Invoice total: ");
  prompt.push_back(TokenFor("\xe2"));
  auto stream = Complete(Json(prompt).dump(), R"("max_tokens":4,"stream":true,"echo":false)");
  service_.First(0, TokenFor("\x82"));
  service_.Tokens(0, ByteTokens("\xac"));
  service_.Tokens(0, Encode("12"));
  service_.End(0, kLength);
  EXPECT_EQ(ReadStream(*stream).text,
            "\xe2\x82\xac"
            "12");

  auto other = Complete(Json(prompt).dump(), R"("stream":true)");
  Speak(1, Encode("12"), kLength);
  EXPECT_EQ(ReadStream(*other).text, "12");

  // The output went on with the character and did not complete it: the mark is the prompt's.
  auto broken = Complete(Json(prompt).dump(), R"("stream":true)");
  service_.First(2, TokenFor("\x80"));
  service_.Tokens(2, Encode(" total"));
  service_.End(2, kLength);
  EXPECT_EQ(ReadStream(*broken).text, " total");
}

TEST_F(CompletionHandlerTest, AnEchoShowsTheCharacterThatTheOutputCompletes) {
  std::vector<TokenId> prompt = Encode("Total: ");
  prompt.push_back(TokenFor("\xe2"));
  size_t sequence = 0;
  for (const char* stream : {"false", "true"}) {
    for (const auto& [output, text] :
         std::vector<std::pair<std::string, std::string>>{{"\x82\xac"
                                                           "12",
                                                           "Total: \u20AC12"},
                                                          {"12", "Total: \uFFFD12"},
                                                          {"\x82", "Total: \uFFFD"},
                                                          {"\x82 12", "Total: \uFFFD 12"}}) {
      SCOPED_TRACE(text);
      auto writer = Complete(Json(prompt).dump(),
                             absl::StrCat(R"("echo":true,"logprobs":0,"stream":)", stream));
      Speak(sequence++, ByteTokens(output), kLength);
      if (writer->streaming()) {
        EXPECT_EQ(ReadStream(*writer).text, text);
        continue;
      }
      const Json choice = Json::parse(writer->body())["choices"][0];
      EXPECT_EQ(choice["text"], text);
      const Json& offsets = choice["logprobs"]["text_offset"];
      ASSERT_THAT(offsets, SizeIs(prompt.size() + output.size()));
      EXPECT_EQ(offsets[prompt.size() - 1], 7);
      EXPECT_EQ(offsets[prompt.size()], 7);
    }
  }
  auto scored = Complete(Json(prompt).dump(), R"("echo":true,"max_tokens":0)");
  Speak(sequence, {TokenFor("x")}, kLength);
  EXPECT_EQ(Json::parse(scored->body())["choices"][0]["text"], "Total: \uFFFD");
}

// STR-6: a failure before the first token looked like an empty success.
TEST_F(CompletionHandlerTest, AFailureBeforeTheFirstTokenIsAnHttpError) {
  size_t sequence = 0;
  for (const char* stream : {"true", "false"}) {
    auto writer = Chat(absl::StrCat(R"("stream":)", stream));
    service_.Fail(sequence++, absl::InternalError("decode node lost"));
    loop_.RunDue();
    EXPECT_EQ(writer->status(), 500);
    EXPECT_FALSE(writer->streaming());
    const Json error = Json::parse(writer->body()).at("error");
    EXPECT_EQ(error.at("message"), "decode node lost");
    EXPECT_EQ(error.at("type"), "server_error");
    EXPECT_TRUE(error.contains("param") && error.contains("code"));
  }
  EXPECT_EQ(Requests("chat", 500, "server_error"), 2);
  EXPECT_EQ(handler_.sessions(), 0u);
}

TEST_F(CompletionHandlerTest, AFailureInAStreamIsOneErrorObjectAndNoDone) {
  // After some tokens, and between the last token and the end.
  for (const size_t tokens : {size_t{1}, size_t{5}}) {
    auto writer = Chat(R"("stream":true)");
    const size_t sequence = service_.started.size() - 1;
    service_.First(sequence, TokenFor("A"));
    for (size_t i = 1; i < tokens; ++i) {
      service_.Tokens(sequence, std::vector<TokenId>{TokenFor("A")});
    }
    service_.Fail(sequence, absl::UnavailableError("decode node lost"));
    loop_.RunDue();
    EXPECT_TRUE(writer->finished());
    const std::vector<std::string> events = writer->Events();
    int errors = 0;
    for (const std::string& event : events) {
      ASSERT_NE(event, "[DONE]");
      if (Json::parse(event).contains("error")) ++errors;
    }
    EXPECT_EQ(errors, 1);
    EXPECT_EQ(Json::parse(events.back())["error"]["message"], "decode node lost");
    EXPECT_EQ(ReadStream(*writer).text, std::string(tokens, 'A'));
    EXPECT_THAT(ReadStream(*writer).finish_reasons, IsEmpty());
  }
  EXPECT_EQ(Requests("chat", 200, "stream_error"), 2);
}

TEST_F(CompletionHandlerTest, AWholeAnswerFailsAsAWhole) {
  auto writer = Chat("");
  service_.First(0, TokenFor("A"));
  service_.Tokens(0, Encode("BCD"));
  service_.Fail(0, absl::DataLossError("KV lost"));
  EXPECT_EQ(writer->status(), 500);
  EXPECT_FALSE(Json::parse(writer->body()).contains("choices"));
}

TEST_F(CompletionHandlerTest, AnEndWithoutATokenOrAReasonIsNoSuccess) {
  auto writer = Chat("");
  service_.End(0, kStop);
  EXPECT_EQ(writer->status(), 500);
  writer = Chat("");
  service_.First(1, TokenFor("A"));
  service_.End(1, proto::Terminal::FINISH_REASON_UNSPECIFIED);
  EXPECT_EQ(writer->status(), 500);
}

TEST_F(CompletionHandlerTest, RefusalsSayWhenToComeBack) {
  struct Case {
    absl::Status status;
    int http_status;
    std::string retry_after;
  };
  const Case kCases[] = {{absl::ResourceExhaustedError("full"), 429, "1"},
                         {absl::UnavailableError("no node"), 503, "1"},
                         {absl::OutOfRangeError("too large"), 413, ""},
                         {absl::DeadlineExceededError("late"), 504, ""}};
  for (const Case& c : kCases) {
    SCOPED_TRACE(c.http_status);
    for (const char* stream : {"true", "false"}) {
      service_.refusal = c.status;
      service_.refuse_from = service_.started.size();
      auto writer = Chat(absl::StrCat(R"("stream":)", stream));
      EXPECT_EQ(writer->status(), c.http_status);
      EXPECT_EQ(writer->Header("retry-after"), c.retry_after);
      EXPECT_FALSE(writer->streaming());
    }
  }
  service_.refusal = absl::OkStatus();
  auto writer = Chat("");
  service_.Fail(service_.started.size() - 1, absl::ResourceExhaustedError("no room in time"),
                absl::Milliseconds(6500));
  EXPECT_EQ(writer->status(), 429);
  EXPECT_EQ(writer->Header("retry-after"), "7");
  EXPECT_EQ(Requests("chat", 429, "rejected"), 3);
}

TEST_F(CompletionHandlerTest, OnlyWhatWasRefusedBeforeWorkCountsAsRejected) {
  auto refused = Chat("");
  service_.Fail(0, absl::UnavailableError("no node"));
  EXPECT_EQ(refused->status(), 503);
  EXPECT_EQ(Requests("chat", 503, "rejected"), 1);
  auto lost = Chat("");
  service_.Fail(1, absl::UnavailableError("node lost"), absl::Seconds(1), /*work_begun=*/true);
  EXPECT_EQ(lost->status(), 503);
  auto sisters = Chat(R"("n":2)");
  service_.First(2, TokenFor("A"));
  service_.Fail(3, absl::UnavailableError("no node"));
  EXPECT_EQ(sisters->status(), 503);
  EXPECT_EQ(Requests("chat", 503, "server_error"), 2);
  EXPECT_EQ(Requests("chat", 503, "rejected"), 1);
  loop_.RunDue();
}

TEST_F(CompletionHandlerTest, ARefusedRequestCountsForItsModel) {
  Chat(R"("temperature":9)");
  EXPECT_EQ(Requests("chat", 400, "client_error"), 1);
  Complete(R"("x")", R"("max_tokens":100000)");
  Complete("[]");
  EXPECT_EQ(Requests("completions", 400, "client_error"), 2);
  Call("POST", "/v1/completions", R"({"model":"what","prompt":[]})");
  Call("POST", "/v1/completions", "{");
  const std::string other = R"(lynx_router_requests_total{api="completions",code=")";
  EXPECT_EQ(Metric(other + R"(404",model_name="other",outcome="client_error"})"), 1);
  EXPECT_EQ(Metric(other + R"(400",model_name="other",outcome="client_error"})"), 1);
}

TEST_F(CompletionHandlerTest, WhenOneChoiceFailsOrIsRefusedTheOthersStop) {
  auto writer = Chat(R"("n":3)");
  service_.First(0, TokenFor("A"));
  service_.Fail(1, absl::InternalError("lost"));
  loop_.RunDue();
  EXPECT_EQ(writer->status(), 500);
  EXPECT_THAT(service_.cancelled, UnorderedElementsAre(0u, 2u));

  service_.cancelled.clear();
  service_.refusal = absl::ResourceExhaustedError("full");
  service_.refuse_from = 5;
  writer = Chat(R"("n":3)");
  EXPECT_EQ(writer->status(), 429);
  EXPECT_THAT(service_.cancelled, UnorderedElementsAre(3u, 4u));
  EXPECT_EQ(service_.live(), 0u);
}

// STR-7: partial characters were reported as the replacement mark's bytes.
TEST_F(CompletionHandlerTest, JoinedLogprobBytesAreTheBytesOfTheText) {
  const std::string text = "a\xf0\x9f\x98\x80 b\xe2\x82\xac";
  for (const char* stream : {"true", "false"}) {
    auto writer = Chat(absl::StrCat(R"("logprobs":true,"top_logprobs":1,"stream":)", stream));
    const size_t sequence = service_.started.size() - 1;
    EXPECT_EQ(service_.started[sequence].sampling.top_logprobs(), 1);
    bool first = true;
    for (TokenId id : ByteTokens(text)) {
      proto::Token token = FakeSequenceService::Token(id, -0.5F);
      proto::TopLogprob* other = token.add_top();
      other->set_token(TokenFor("\x9f"));
      other->set_logprob(-0.25F);
      if (std::exchange(first, false)) {
        service_.First(sequence, token);
      } else {
        service_.Tokens(sequence, std::vector<proto::Token>{token});
      }
    }
    service_.End(sequence, kStop);
    if (writer->streaming()) {
      EXPECT_EQ(ReadStream(*writer).text, text);
      EXPECT_EQ(ReadStream(*writer).logprob_bytes, text);
      continue;
    }
    const Json content = Json::parse(writer->body())["choices"][0]["logprobs"]["content"];
    std::string joined;
    for (const Json& entry : content) {
      for (const Json& byte : entry["bytes"]) joined += static_cast<char>(byte.get<int>());
      EXPECT_EQ(entry["top_logprobs"][0]["bytes"], Json::array({0x9f}));
    }
    EXPECT_EQ(joined, text);
  }
}

// STR-8: infinite log-probabilities broke the JSON; NaN passed for an answer.
TEST_F(CompletionHandlerTest, MinusInfinityIsFlooredAndNanIsAnError) {
  const float infinity = std::numeric_limits<float>::infinity();
  proto::Token token = FakeSequenceService::Token(TokenFor("A"), -infinity);
  token.add_top()->set_logprob(-infinity);
  auto writer = Complete(R"("x")", R"("logprobs":5,"top_k":1)");
  service_.First(0, token);
  service_.End(0, kLength);
  ASSERT_EQ(writer->status(), 200);
  EXPECT_EQ(Json::parse(writer->body())["choices"][0]["logprobs"]["token_logprobs"][0], -9999.0);

  writer = Complete(R"("x")", R"("logprobs":5)");
  service_.First(1, FakeSequenceService::Token(TokenFor("A"), std::nanf("")));
  loop_.RunDue();
  EXPECT_EQ(writer->status(), 500);
  EXPECT_THAT(service_.cancelled, ElementsAre(1u));
  EXPECT_EQ(Requests("completions", 500, "server_error"), 1);
}

// TOK-2: only one of several end tokens was honoured, and its text showed up in answers.
TEST_F(CompletionHandlerTest, EveryEndTokenStopsUnlessIgnoredAndCountsAsOutput) {
  for (const char* stream : {"true", "false"}) {
    auto writer = Complete(R"("x")", absl::StrCat(R"("logprobs":0,"stream":)", stream));
    EXPECT_THAT(service_.started.back().sampling.stop_token_ids(), ElementsAre(kEndOfText, kImEnd));
    Speak(service_.started.size() - 1, {TokenFor("A"), TokenFor("B")}, kStop);
    if (writer->streaming()) {
      EXPECT_EQ(ReadStream(*writer).text, "AB");
      EXPECT_THAT(ReadStream(*writer).finish_reasons, ElementsAre("stop"));
      continue;
    }
    const Json answer = Json::parse(writer->body());
    EXPECT_EQ(answer["choices"][0]["text"], "AB");
    EXPECT_EQ(answer["choices"][0]["finish_reason"], "stop");
    EXPECT_THAT(answer["choices"][0]["logprobs"]["tokens"], SizeIs(2));
    EXPECT_EQ(answer["usage"]["completion_tokens"], 3) << "the end token was sampled as well";
  }
  Complete(R"("x")", R"("ignore_eos":true)");
  EXPECT_THAT(service_.started.back().sampling.stop_token_ids(), IsEmpty());
}

TEST_F(CompletionHandlerTest, AnAnswerThatStopsAtOnceIsEmptyButComplete) {
  for (const char* stream : {"true", "false"}) {
    auto writer = Chat(absl::StrCat(R"("stream":)", stream));
    service_.FirstIsStop(service_.started.size() - 1);
    service_.End(service_.started.size() - 1, kStop);
    ASSERT_EQ(writer->status(), 200);
    if (writer->streaming()) {
      const Streamed streamed = ReadStream(*writer);
      EXPECT_EQ(streamed.chunks, 2) << "the role and the reason";
      EXPECT_EQ(streamed.text, "");
      EXPECT_THAT(streamed.finish_reasons, ElementsAre("stop"));
    } else {
      const Json answer = Json::parse(writer->body());
      EXPECT_EQ(answer["choices"][0]["message"]["content"], "");
      EXPECT_EQ(answer["usage"]["completion_tokens"], 1);
    }
  }
}

TEST_F(CompletionHandlerTest, AStopStringAcrossTokensEndsTextAndSequence) {
  for (const char* stream : {"true", "false"}) {
    auto writer =
        Complete(R"("x")", absl::StrCat(R"("stop":["END","zzz"],"logprobs":0,"stream":)", stream));
    const size_t sequence = service_.started.size() - 1;
    service_.cancelled.clear();
    service_.First(sequence, TokenFor("a"));
    service_.Tokens(sequence, ByteTokens("E"));
    if (writer->streaming()) {
      EXPECT_THAT(writer->body(), Not(HasSubstr("E\""))) << "part of a stop string was sent";
    }
    service_.Tokens(sequence, ByteTokens("xEN"));  // "aEx": the E was none after all.
    service_.Tokens(sequence, ByteTokens("D and more"));
    service_.Tokens(sequence, ByteTokens("late"));  // Before the cancel gets through.
    loop_.RunDue();
    EXPECT_THAT(service_.cancelled, ElementsAre(sequence));
    EXPECT_TRUE(writer->finished());
    if (writer->streaming()) {
      EXPECT_EQ(ReadStream(*writer).text, "aEx");
      EXPECT_THAT(ReadStream(*writer).finish_reasons, ElementsAre("stop"));
      continue;
    }
    const Json answer = Json::parse(writer->body());
    EXPECT_EQ(answer["choices"][0]["text"], "aEx");
    EXPECT_EQ(answer["choices"][0]["finish_reason"], "stop");
    EXPECT_EQ(answer["choices"][0]["logprobs"]["tokens"], Json::array({"a", "E", "x"}));
    EXPECT_EQ(answer["usage"]["completion_tokens"], 6) << "tokens up to the end of the stop string";
  }
}

TEST_F(CompletionHandlerTest, HeldBackTextIsSentWhenTheSequenceEnds) {
  auto writer = Complete(R"("x")", R"("stop":"END","stream":true)");
  Speak(0, ByteTokens("aEN"), kLength);
  EXPECT_EQ(ReadStream(*writer).text, "aEN");
}

TEST_F(CompletionHandlerTest, ChoicesOfSeveralPromptsKeepTheirIndex) {
  for (const char* stream : {"true", "false"}) {
    auto writer =
        Complete(R"(["first","second one"])", absl::StrCat(R"("n":3,"seed":7,"stream":)", stream));
    const size_t base = service_.started.size() - 6;
    for (size_t i = 0; i < 6; ++i) {
      const SequenceRequest& request = service_.started[base + i];
      EXPECT_EQ(request.prompt, Encode(i < 3 ? "first" : "second one"));
      EXPECT_EQ(request.sampling.choice_index(), i % 3) << "the same as for the prompt alone";
      EXPECT_EQ(request.sampling.seed(), 7u);
    }
    // Interleaved, and ending in another order than they began.
    for (size_t i : {4u, 1u, 0u, 5u, 3u, 2u}) {
      service_.First(base + i, FakeSequenceService::Token(Encode(absl::StrCat(i)).at(0)), {},
                     static_cast<int32_t>(i));
    }
    for (size_t i = 0; i < 6; ++i) service_.Tokens(base + i, Encode(absl::StrCat("-", i, ".")));
    for (size_t i : {5u, 0u, 3u, 1u, 2u, 4u}) {
      EXPECT_FALSE(writer->finished());
      service_.End(base + i, kStop);
    }
    ASSERT_TRUE(writer->finished());
    for (int i = 0; i < 6; ++i) {
      const std::string want = absl::StrCat(i, "-", i, ".");
      if (writer->streaming()) {
        EXPECT_EQ(ReadStream(*writer, i).text, want);
        EXPECT_THAT(ReadStream(*writer, i).finish_reasons, ElementsAre("stop"));
      } else {
        const Json answer = Json::parse(writer->body());
        EXPECT_EQ(answer["choices"][static_cast<size_t>(i)]["index"], i);
        EXPECT_EQ(answer["choices"][static_cast<size_t>(i)]["text"], want);
      }
    }
    if (!writer->streaming()) {
      const Json usage = Json::parse(writer->body())["usage"];
      EXPECT_EQ(usage["prompt_tokens"], Encode("first").size() + Encode("second one").size())
          << "a prompt counts once, however many choices it has";
      EXPECT_EQ(usage["prompt_tokens_details"]["cached_tokens"], 0 + 3);
    }
  }
}

TEST_F(CompletionHandlerTest, EchoPutsThePromptAndItsLogprobsFirst) {
  const std::vector<TokenId> prompt = ByteTokens(
      "\xc3\xa9"
      "b");
  for (const char* stream : {"true", "false"}) {
    auto writer = Complete(Json(prompt).dump(),
                           absl::StrCat(R"("echo":true,"logprobs":1,"stream":)", stream));
    const size_t sequence = service_.started.size() - 1;
    EXPECT_TRUE(service_.started[sequence].sampling.prompt_logprobs());
    service_.First(
        sequence, FakeSequenceService::Token(TokenFor("c"), -3),
        {FakeSequenceService::Token(prompt[1], -1), FakeSequenceService::Token(prompt[2], -2)});
    service_.Tokens(sequence,
                    std::vector<proto::Token>{FakeSequenceService::Token(TokenFor("d"), -4)});
    service_.End(sequence, kLength);
    std::string text;
    Json tokens = Json::array();
    Json logprobs = Json::array();
    Json offsets = Json::array();
    auto add = [&](const Json& choice) {
      text += choice["text"].get<std::string>();
      if (choice["logprobs"].is_null()) return;
      for (const Json& one : choice["logprobs"]["tokens"]) tokens.push_back(one);
      for (const Json& one : choice["logprobs"]["token_logprobs"]) logprobs.push_back(one);
      for (const Json& one : choice["logprobs"]["text_offset"]) offsets.push_back(one);
    };
    if (writer->streaming()) {
      for (const std::string& event : writer->Events()) {
        if (event != "[DONE]") add(Json::parse(event)["choices"][0]);
      }
    } else {
      add(Json::parse(writer->body())["choices"][0]);
    }
    EXPECT_EQ(text,
              "\xc3\xa9"
              "bcd");
    EXPECT_EQ(tokens, Json::array({"bytes:\\xc3", "bytes:\\xa9", "b", "c", "d"}));
    EXPECT_EQ(logprobs, Json::array({nullptr, -1.0, -2.0, -3.0, -4.0}));
    EXPECT_EQ(offsets, Json::array({0, 0, 1, 2, 3}));
  }
}

TEST_F(CompletionHandlerTest, EchoWithoutTokensScoresThePromptOnly) {
  auto writer = Complete(R"("ab")", R"("echo":true,"logprobs":0,"max_tokens":0)");
  const std::vector<TokenId> prompt = Encode("ab");
  EXPECT_EQ(service_.started.at(0).sampling.max_new_tokens(), 1);
  std::vector<proto::Token> tail;
  for (size_t i = 1; i < prompt.size(); ++i) {
    tail.push_back(FakeSequenceService::Token(prompt[i], -1));
  }
  service_.First(0, FakeSequenceService::Token(TokenFor("c"), -3), tail);
  service_.End(0, kLength);
  const Json answer = Json::parse(writer->body());
  EXPECT_EQ(answer["choices"][0]["text"], "ab");
  EXPECT_EQ(answer["choices"][0]["finish_reason"], "length");
  EXPECT_THAT(answer["choices"][0]["logprobs"]["tokens"], SizeIs(prompt.size()));
  EXPECT_EQ(answer["usage"]["completion_tokens"], 0);
}

TEST_F(CompletionHandlerTest, WorkStopsWhenTheClientLeaves) {
  auto waiting = Chat(R"("n":2,"stream":true)");
  waiting->Leave();
  loop_.RunDue();
  EXPECT_THAT(service_.cancelled, ElementsAre(0u, 1u));
  EXPECT_EQ(Requests("chat", 499, "cancelled"), 1);

  auto streaming = Chat(R"("stream":true)");
  service_.First(2, TokenFor("A"));
  streaming->Leave();
  loop_.RunDue();
  EXPECT_THAT(service_.cancelled, ElementsAre(0u, 1u, 2u));
  EXPECT_EQ(Requests("chat", 200, "cancelled"), 1);

  auto whole = Chat("");
  service_.First(3, TokenFor("A"));
  whole->Leave();
  loop_.RunDue();
  EXPECT_THAT(service_.cancelled, ElementsAre(0u, 1u, 2u, 3u));
  EXPECT_EQ(service_.live(), 0u);
  EXPECT_EQ(handler_.sessions(), 0u);
  EXPECT_EQ(Metric(R"(lynx_router_client_disconnects_total{model_name="tiny",phase="prefill"})"),
            1);
  EXPECT_EQ(Metric(R"(lynx_router_client_disconnects_total{model_name="tiny",phase="streaming"})"),
            2);
  EXPECT_EQ(Metric("lynx_router_inflight_requests{model_name=\"tiny\"}"), 0);
}

// SEC-4: a client that never reads made the proxy hold a whole stream.
TEST_F(CompletionHandlerTest, AClientThatDoesNotReadLosesItsSequence) {
  auto slow = Chat(R"("stream":true)");
  auto neighbour = Chat(R"("stream":true)");
  slow->max_output_bytes = 2000;
  service_.First(0, TokenFor("A"));
  service_.First(1, TokenFor("A"));
  for (int i = 0; i < 100 && service_.Live(0); ++i) {
    service_.Tokens(0, std::vector<TokenId>{TokenFor("A")});
    service_.Tokens(1, std::vector<TokenId>{TokenFor("A")});
    loop_.RunDue();
  }
  EXPECT_THAT(service_.cancelled, ElementsAre(0u));
  EXPECT_LE(slow->body().size(), 2000u);
  service_.End(1, kStop);
  EXPECT_THAT(ReadStream(*neighbour).finish_reasons, ElementsAre("stop"));
}

// K8S-6: proxies cut streams that said nothing during a long prefill.
TEST_F(CompletionHandlerTest, AQuietStreamIsKeptAliveByComments) {
  auto stream = Chat(R"("stream":true)");
  loop_.Advance(absl::Seconds(4));
  EXPECT_EQ(stream->status(), 0) << "an early failure could not have its status any more";
  loop_.Advance(absl::Seconds(2));
  EXPECT_EQ(stream->status(), 200);
  EXPECT_TRUE(stream->body().starts_with(":"));
  loop_.Advance(absl::Seconds(24));
  EXPECT_EQ(stream->writes(), 6);
  EXPECT_THAT(stream->Events(), IsEmpty()) << "comments must not look like events";

  service_.First(0, TokenFor("A"));
  loop_.Advance(absl::Seconds(4));
  service_.Tokens(0, ByteTokens("B"));
  loop_.Advance(absl::Seconds(4));
  EXPECT_EQ(stream->writes(), 8) << "a comment although tokens came in time";
  loop_.Advance(absl::Seconds(2));
  EXPECT_EQ(stream->writes(), 9);
  service_.End(0, kStop);
  loop_.Advance(absl::Minutes(1));
  EXPECT_EQ(ReadStream(*stream).text, "AB");
  EXPECT_EQ(stream->writes(), 10);
}

TEST_F(CompletionHandlerTest, AFailureAfterACommentIsAStreamError) {
  auto stream = Chat(R"("stream":true)");
  loop_.Advance(absl::Seconds(6));
  service_.Fail(0, absl::UnavailableError("no node"));
  ASSERT_THAT(stream->Events(), SizeIs(1));
  EXPECT_EQ(Json::parse(stream->Events()[0])["error"]["code"], "unavailable");
  EXPECT_TRUE(stream->finished());
}

// SEC-2: deep nesting overflowed the stack.
TEST_F(CompletionHandlerTest, ADeepBodyIsRefused) {
  const std::string deep(1'000'000, '[');
  auto writer = Chat(absl::StrCat(R"("tools":)", deep));
  EXPECT_EQ(writer->status(), 400);
  EXPECT_THAT(writer->body(), HasSubstr("too deep"));
  EXPECT_EQ(Call("POST", "/tokenize", deep)->status(), 400);
  EXPECT_EQ(Call("POST", "/detokenize", deep)->status(), 400);
}

// API-5: the array form of a message gave other tokens than the plain form.
TEST_F(CompletionHandlerTest, TextPartsGiveTheSameTokensAsAPlainString) {
  for (const char* role : {"system", "developer", "user", "assistant"}) {
    for (const char* content : {R"("Reply in French.\nAt most ten words.")",
                                R"([{"type":"text","text":"Reply in French."},
              {"type":"text","text":"At most ten words."}])"}) {
      Call("POST", "/v1/chat/completions",
           absl::StrCat(R"({"model":"tiny","messages":[{"role":")", role, R"(","content":)",
                        content, "}]}"));
    }
    ASSERT_GE(service_.started.size(), 2u);
    EXPECT_EQ(service_.started.back().prompt, service_.started[service_.started.size() - 2].prompt);
  }
}

TEST_F(CompletionHandlerTest, WhatTheTemplateRefusesIsTheClientsError) {
  const auto strict = text::ChatTemplate::Parse("{{ raise_exception('no tools here') }}", {});
  ASSERT_TRUE(strict.ok()) << strict.status();
  for (const text::ChatTemplate* chat_template :
       std::initializer_list<const text::ChatTemplate*>{strict->get(), nullptr}) {
    telemetry::Registry registry;
    CompletionHandler handler(Options(), TinyTokenizer(), chat_template, service_, loop_, registry);
    auto writer = std::make_shared<FakeResponseWriter>();
    http::HttpRequest request;
    request.method = "POST";
    request.path = "/v1/chat/completions";
    request.body = R"({"model":"tiny","messages":[{"role":"tool","content":"x"}]})";
    handler.Handle(request, writer);
    EXPECT_EQ(writer->status(), 400);
    const Json error = Json::parse(writer->body())["error"];
    EXPECT_EQ(error["param"], "messages");
    EXPECT_THAT(error["message"].get<std::string>(),
                HasSubstr(chat_template != nullptr ? "no tools here" : "no chat template"));
  }
  EXPECT_THAT(service_.started, IsEmpty());
}

TEST_F(CompletionHandlerTest, APromptOverTheContextIsRefused) {
  std::string words;
  for (int i = 0; i < 3000; ++i) words += "word ";
  for (const std::string& prompt : {words, std::string(5'000'000, 'x')}) {
    auto writer = Complete(Json(prompt).dump());
    EXPECT_EQ(writer->status(), 400);
    EXPECT_EQ(Json::parse(writer->body())["error"]["code"], "context_length_exceeded");
  }
  auto writer = Complete(R"("hi")", R"("max_tokens":999999999999)");
  EXPECT_EQ(writer->status(), 400);
  EXPECT_EQ(Json::parse(writer->body())["error"]["param"], "max_tokens");
  EXPECT_THAT(service_.started, IsEmpty());
  Complete(R"("hi")");
  EXPECT_EQ(service_.started.at(0).sampling.max_new_tokens() +
                static_cast<int>(service_.started[0].prompt.size()),
            2048);
}

// MET-6, SEC-9: the model field became a label, broke the scrape and grew without bound.
TEST_F(CompletionHandlerTest, RequestTextNeverReachesTheMetrics) {
  const auto lines = [&] {
    const std::string text = registry_.Render();
    return std::count(text.begin(), text.end(), '\n');
  };
  const auto before = lines();
  std::vector<std::string> names = {"a\"b", "a\\b", "a\nb", std::string(10'000, 'n'), ""};
  for (int i = 0; i < 1000; ++i) names.push_back(absl::StrCat("secret-", i));
  for (const std::string& name : names) {
    auto writer = Call("POST", "/v1/chat/completions",
                       Json{{"model", name},
                            {"user", "secret-user"},
                            {"messages", Json::array({{{"role", "user"}, {"content", "secret"}}})}}
                           .dump());
    EXPECT_EQ(writer->status(), 404);
    EXPECT_EQ(Json::parse(writer->body())["error"]["code"], "model_not_found");
  }
  Call("POST", "/v1/chat/completions", "{\"model\":\"\xff\"}");
  Call("GET", "/secret-path", "");
  Chat(R"("user":"secret-user")", {{"x-request-id", "secret-id"}});
  Speak(0, Encode("secret"), kStop);
  EXPECT_EQ(lines(), before) << "requests made new series";
  EXPECT_THAT(registry_.Render(), Not(HasSubstr("secret")));
  EXPECT_EQ(Metric(R"(lynx_router_requests_total{api="chat",code="404",model_name="other")"),
            static_cast<double>(names.size()));
  constexpr char kLine[] =
      R"((# (HELP|TYPE) .*)|([a-zA-Z_:][a-zA-Z0-9_:]*(\{[^{}]*\})? [-+0-9.eENaInf]+))";
  std::istringstream text(registry_.Render());
  for (std::string line; std::getline(text, line);) {
    EXPECT_THAT(line, ::testing::MatchesRegex(kLine));
  }
}

TEST_F(CompletionHandlerTest, LatenciesAndTokensAreMeasured) {
  Chat(R"("stream":true)");
  const size_t prompt_tokens = service_.started.at(0).prompt.size();
  loop_.Advance(absl::Milliseconds(300));
  service_.First(0, TokenFor("A"));
  loop_.Advance(absl::Milliseconds(50));
  service_.Tokens(0, ByteTokens("B"));
  loop_.Advance(absl::Milliseconds(70));
  service_.Tokens(0, ByteTokens("CD"));
  service_.End(0, kLength);
  const std::string model = "{model_name=\"tiny\"}";
  EXPECT_NEAR(Metric("lynx_router_time_to_first_token_seconds_sum" + model), 0.3, 1e-9);
  EXPECT_EQ(Metric("lynx_router_inter_token_latency_seconds_count" + model), 2);
  EXPECT_NEAR(Metric("lynx_router_inter_token_latency_seconds_sum" + model), 0.12, 1e-9);
  EXPECT_NEAR(Metric("lynx_router_time_per_output_token_seconds_sum" + model), 0.04, 1e-9);
  EXPECT_EQ(Metric("lynx_router_prompt_tokens_total" + model), static_cast<double>(prompt_tokens));
  EXPECT_EQ(Metric("lynx_router_output_tokens_total" + model), 4);
  EXPECT_EQ(Metric("lynx_router_request_output_tokens_sum" + model), 4);
  EXPECT_NEAR(
      Metric(R"(lynx_router_request_duration_seconds_sum{model_name="tiny",streaming="true"})"),
      0.42, 1e-9);
  EXPECT_EQ(Metric(R"(lynx_router_stage_duration_seconds_count{stage="tokenize"})"), 1);
}

TEST_F(CompletionHandlerTest, TargetsAreCountedByTheWorstChoice) {
  const auto count = [&](const char* slo, const char* result) {
    return Metric(absl::StrCat(R"(lynx_router_slo_requests_total{model_name="tiny",result=")",
                               result, R"(",slo=")", slo, "\"}"));
  };
  const auto counts = [&] {
    std::vector<double> all;
    for (const char* slo : {"ttft", "tpot", "all"}) {
      for (const char* result : {"met", "missed"}) all.push_back(count(slo, result));
    }
    return all;
  };
  const std::string model = "{model_name=\"tiny\"}";
  EXPECT_THAT(counts(), ElementsAre(0, 0, 0, 0, 0, 0));
  EXPECT_NEAR(Metric(R"(lynx_router_slo_target_seconds{model_name="tiny",slo="ttft"})"), 0.4, 1e-9);

  Chat();
  loop_.Advance(absl::Milliseconds(400));
  Speak(0, {TokenFor("A"), TokenFor("B")}, kLength);
  EXPECT_THAT(counts(), ElementsAre(1, 0, 1, 0, 1, 0));
  EXPECT_EQ(Metric("lynx_router_goodput_tokens_total" + model), 2);

  Complete("\"a\"", R"("n":2)");
  service_.First(1, TokenFor("A"));
  service_.First(2, TokenFor("A"));
  service_.End(1, kLength);
  loop_.Advance(absl::Milliseconds(61));
  service_.Tokens(2, ByteTokens("B"));
  service_.End(2, kLength);
  loop_.RunDue();
  EXPECT_THAT(counts(), ElementsAre(2, 0, 1, 1, 1, 1));
  EXPECT_EQ(Metric("lynx_router_goodput_tokens_total" + model), 2);

  Chat();
  service_.Fail(3, absl::UnavailableError("no node"));
  loop_.RunDue();
  EXPECT_THAT(counts(), ElementsAre(2, 1, 1, 2, 1, 2)) << "a failure misses everything";

  Chat()->Leave();
  loop_.RunDue();
  Chat(R"("max_tokens":-1)");
  EXPECT_THAT(counts(), ElementsAre(2, 1, 1, 2, 1, 2)) << "clients' own doing is left out";
}

TEST_F(CompletionHandlerTest, SeriesReadZeroBeforeTheFirstRequest) {
  EXPECT_EQ(Requests("chat", 200, "ok"), 0);
  EXPECT_EQ(Requests("completions", 200, "stream_error"), 0);
  EXPECT_EQ(Metric("lynx_router_inflight_requests{model_name=\"tiny\"}"), 0);
}

TEST_F(CompletionHandlerTest, ModelsAreListedAndFound) {
  auto writer = Call("GET", "/v1/models", "");
  EXPECT_EQ(writer->status(), 200);
  EXPECT_EQ(Json::parse(writer->body())["data"][0]["id"], "tiny");
  EXPECT_EQ(Json::parse(Call("GET", "/v1/models/tiny", "")->body())["id"], "tiny");
  EXPECT_EQ(Call("HEAD", "/v1/models", "")->status(), 200);
  for (const std::string& name : {std::string("x"), std::string(), std::string("\xff")}) {
    writer = Call("GET", "/v1/models/" + name, "");
    EXPECT_EQ(writer->status(), 404);
    EXPECT_EQ(Json::parse(writer->body())["error"]["code"], "model_not_found");
  }
}

TEST_F(CompletionHandlerTest, TokenizeAndDetokenizeAreInverse) {
  const std::string text = "Hello, w\xc3\xb6rld <|im_end|>";
  auto writer = Call("POST", "/tokenize", Json{{"prompt", text}}.dump());
  ASSERT_EQ(writer->status(), 200);
  const Json tokens = Json::parse(writer->body());
  EXPECT_EQ(tokens["tokens"].get<std::vector<TokenId>>(), Encode(text));
  EXPECT_EQ(tokens["count"], Encode(text).size());
  EXPECT_EQ(tokens["max_model_len"], 2048);
  writer = Call("POST", "/detokenize", Json{{"tokens", tokens["tokens"]}}.dump());
  EXPECT_EQ(Json::parse(writer->body())["prompt"], text);
  writer = Call("POST", "/tokenize", R"({"messages":[{"role":"user","content":"hi"}]})");
  Chat("");
  EXPECT_EQ(Json::parse(writer->body())["tokens"].get<std::vector<TokenId>>(),
            service_.started.at(0).prompt);
  EXPECT_EQ(Json::parse(Call("POST", "/tokenize", R"({"prompt":""})")->body())["count"], 0);
  EXPECT_EQ(Call("POST", "/detokenize", R"({"tokens":[4096]})")->status(), 400);
}

TEST_F(CompletionHandlerTest, UnknownPathsAndMethodsAreOpenAiErrors) {
  auto writer = Call("GET", "/nothing/\xff", "");
  EXPECT_EQ(writer->status(), 404);
  EXPECT_EQ(Json::parse(writer->body())["error"]["code"], "unknown_url");
  writer = Call("GET", "/v1/completions", "");
  EXPECT_EQ(writer->status(), 405);
  EXPECT_EQ(writer->Header("allow"), "POST");
  EXPECT_EQ(Json::parse(writer->body())["error"]["type"], "invalid_request_error");
  EXPECT_EQ(Call("POST", "/v1/models", "")->status(), 405);
  const auto refuse_early = [&](const char* method, const char* path) {
    http::HttpRequest head;
    head.method = method;
    head.path = path;
    const auto refusal = handler_.RefuseEarly(head);
    return refusal.has_value() ? refusal->status : 0;
  };
  EXPECT_EQ(refuse_early("POST", "/nothing"), 404) << "the body would be uploaded for nothing";
  EXPECT_EQ(refuse_early("PUT", "/v1/completions"), 405);
  EXPECT_EQ(refuse_early("POST", "/v1/completions"), 0);
  EXPECT_TRUE(Json::accept(handler_.ErrorBody(413, "body too large \xff")));
}

TEST(ApplyDefaultsTest, TheModelsOwnDefaultsCount) {
  RequestLimits limits;
  ApplyDefaults({.do_sample = {},
                 .temperature = 0.7,
                 .top_p = 0.8,
                 .min_p = {},
                 .top_k = 20,
                 .repetition_penalty = 1.05},
                limits);
  EXPECT_FLOAT_EQ(limits.temperature, 0.7F);
  EXPECT_FLOAT_EQ(limits.top_p, 0.8F);
  EXPECT_EQ(limits.top_k, 20);
  EXPECT_FLOAT_EQ(limits.min_p, 0);
  EXPECT_FLOAT_EQ(limits.repetition_penalty, 1.05F);
  ApplyDefaults({.do_sample = false,
                 .temperature = {},
                 .top_p = {},
                 .min_p = {},
                 .top_k = {},
                 .repetition_penalty = {}},
                limits);
  EXPECT_FLOAT_EQ(limits.temperature, 0) << "do_sample false means greedy";
}

}  // namespace
}  // namespace lynx::router
