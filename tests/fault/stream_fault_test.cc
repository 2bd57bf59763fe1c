#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/text/tokenizer.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "services/router/front/completion_handler.h"
#include "tests/support/fake_response_writer.h"
#include "tests/support/faulty_channel.h"
#include "tests/support/sim_cluster.h"
#include "tests/support/test_size.h"
#include "tests/support/wrapped_model_runner.h"

// What a client reads when a node dies at a chosen message of its answer: the whole answer, while
// one node of each role remains or returns in time. Else STR-6: never a stream that is short and
// reads as complete, never a token twice or none, exactly one error.
namespace lynx {
namespace {

using ::lynx::testing::ChannelFault;
using ::lynx::testing::FakeResponseWriter;
using ::lynx::testing::FaultyChannel;
using ::lynx::testing::SimCluster;
using ::lynx::testing::WrappedModelRunner;
using ::testing::HasSubstr;
using ::testing::StartsWith;
using Body = proto::Envelope::BodyCase;
using Json = nlohmann::json;

constexpr Body kFirstToken = Body::kFirstToken;
constexpr Body kTokenBatch = Body::kTokenBatch;
constexpr Body kTerminal = Body::kTerminal;

// `victim` dies at the moment that `speaker` sends its `count`-th message of `kind`, which gets out
// or does not. What a dead node still had to send is lost.
struct Death {
  std::string speaker;
  Body kind;
  int count = 1;
  bool lost = false;
  std::string victim;
};

const text::Tokenizer& TinyTokenizer() {
  static const text::Tokenizer* tokenizer = [] {
    auto loaded = text::Tokenizer::Load("models/lynx-tiny-moe");
    EXPECT_TRUE(loaded.ok()) << loaded.status();
    return loaded->release();
  }();
  return *tokenizer;
}

// Whether decode nodes are of another numeric class than prefill nodes.
enum class Classes : uint8_t { kLike, kUnlike };

// Always wants one and the same token.
class StubbornRunner final : public WrappedModelRunner {
 public:
  using WrappedModelRunner::WrappedModelRunner;
  absl::Status Step(std::span<const model::SequenceRows> batch,
                    model::StepObserver* observer) override {
    absl::Status status = model_->Step(batch, observer);
    logits_.assign(model_->logits().begin(), model_->logits().end());
    for (size_t at = 5; at < logits_.size(); at += static_cast<size_t>(spec().vocab_size)) {
      logits_[at] = 1e6f;
    }
    return status;
  }
  std::span<const float> logits() const override { return logits_; }

 private:
  std::vector<float> logits_;
};

// A cluster with the HTTP API in front.
class Stage {
 public:
  // `stubborn`: a node that is.
  explicit Stage(int pairs, Classes classes = Classes::kLike, const std::string& stubborn = "")
      : cluster_(Options(pairs, classes, stubborn)) {}
  ~Stage() { EXPECT_EQ(handler_.sessions(), 0u); }

  void Plan(Death death) {
    death_ = std::move(death);
    seen_ = 0;
  }
  bool happened() const { return !death_.has_value(); }

  // Asks for an answer and waits for its end.
  std::shared_ptr<FakeResponseWriter> Ask(bool stream, int max_tokens,
                                          const std::string& fields = "") {
    auto writer = Begin(stream, max_tokens, fields);
    EXPECT_TRUE(cluster_.RunUntil([&] { return writer->finished(); })) << writer->body();
    cluster_.Run(absl::ZeroDuration());
    return writer;
  }
  std::shared_ptr<FakeResponseWriter> Begin(bool stream, int max_tokens,
                                            const std::string& fields = "") {
    auto writer = std::make_shared<FakeResponseWriter>();
    handler_.Handle({.method = "POST",
                     .path = "/v1/completions",
                     .query = {},
                     .headers = {},
                     .body = absl::StrCat(
                         R"({"model":"lynx-tiny-moe","prompt":"import os",)",
                         fields.find("temperature") == fields.npos ? R"("temperature":0,)" : "",
                         R"("ignore_eos":true,"max_tokens":)", max_tokens,
                         stream ? R"(,"stream":true)" : "", fields.empty() ? "" : ",", fields, "}"),
                     .peer = {}},
                    writer);
    return writer;
  }

  // Requests that ended with an error of the server's.
  int Failures() const {
    int failures = 0;
    const std::string page = registry_.Render();
    for (const char* outcome : {"stream_error", "server_error", "rejected"}) {
      for (size_t at = page.find(outcome); at != std::string::npos;
           at = page.find(outcome, at + 1)) {
        failures += std::stoi(page.substr(page.find("} ", at) + 2));
      }
    }
    return failures;
  }
  SimCluster& cluster() { return cluster_; }

 private:
  SimCluster::Options Options(int pairs, Classes classes, const std::string& stubborn) {
    SimCluster::Options options = {.prefill = pairs, .decode = pairs, .kv_blocks = 32};
    if (classes == Classes::kUnlike) options.decode_isa = kernels::Isa::kPortable;
    options.wrap_runner = [stubborn](const std::string& name,
                                     std::unique_ptr<model::ModelRunner> model) {
      if (name != stubborn) return model;
      return std::unique_ptr<model::ModelRunner>(new StubbornRunner(std::move(model)));
    };
    options.wrap_channel = [this](const std::string& name, EventLoop& loop,
                                  std::unique_ptr<rpc::Channel> channel) {
      auto faulty = std::make_unique<FaultyChannel>(std::move(channel), loop);
      auto dead = std::make_shared<bool>(false);
      dead_[name] = dead;
      faulty->set_script([this, name, dead](int, const proto::Envelope& envelope) -> ChannelFault {
        if (*dead) return {.drop = true};
        if (!death_.has_value() || name != death_->speaker ||
            envelope.body_case() != death_->kind || ++seen_ < death_->count) {
          return {};
        }
        const Death death = *std::exchange(death_, std::nullopt);
        *dead_.at(death.victim) = true;
        // As a task of its own: this may run inside the victim.
        cluster_.loop().Post([this, victim = death.victim] { cluster_.Kill(victim); });
        return {.drop = death.lost};
      });
      return faulty;
    };
    return options;
  }
  static router::FrontOptions Front() {
    router::FrontOptions options;
    options.limits.model_names = {"lynx-tiny-moe"};
    options.limits.vocab_size = TinyTokenizer().vocab_size();
    options.limits.max_context_tokens = 2048;
    return options;
  }

  std::optional<Death> death_;
  int seen_ = 0;
  std::map<std::string, std::shared_ptr<bool>> dead_;
  SimCluster cluster_;
  telemetry::Registry registry_;
  router::CompletionHandler handler_{Front(),         TinyTokenizer(), nullptr, cluster_.service(),
                                     cluster_.loop(), registry_};
};

struct Answer {
  bool complete = false;
  std::string text;
  std::string finish_reason;  // Empty: none was named.
  std::string error;          // The message; empty: there is none.
};

// Reads an answer as a strict client does: every object has its fields, the end is said once.
Answer Read(const FakeResponseWriter& writer) {
  Answer answer;
  const auto take = [&](const Json& object) {
    if (object.contains("error")) {
      EXPECT_TRUE(answer.error.empty()) << "two errors";
      EXPECT_FALSE(object.contains("choices"));
      answer.error = object.at("error").at("message").get<std::string>();
      EXPECT_FALSE(answer.error.empty());
      return;
    }
    EXPECT_TRUE(answer.error.empty()) << "text after the error";
    for (const char* field : {"id", "object", "created", "model"}) {
      EXPECT_TRUE(object.contains(field)) << field;
    }
    const Json& choice = object.at("choices").at(0);
    answer.text += choice.at("text").get<std::string>();
    if (choice.at("finish_reason").is_null()) return;
    EXPECT_TRUE(answer.finish_reason.empty()) << "two ends";
    answer.finish_reason = choice.at("finish_reason").get<std::string>();
  };
  if (!writer.streaming()) {
    take(Json::parse(writer.body()));
    EXPECT_EQ(writer.status() >= 500, !answer.error.empty()) << writer.status();
    answer.complete = writer.status() == 200;
    return answer;
  }
  EXPECT_EQ(writer.status(), 200);
  for (const std::string& event : writer.Events()) {
    EXPECT_FALSE(answer.complete) << "something after [DONE]: " << event;
    if (event == "[DONE]") {
      answer.complete = true;
    } else {
      take(Json::parse(event));
    }
  }
  return answer;
}

const Answer& Undisturbed(int max_tokens, const std::string& fields = "") {
  static std::map<std::pair<int, std::string>, Answer> answers;  // A cluster takes long to start.
  auto [entry, asked] = answers.try_emplace({max_tokens, fields});
  if (asked) entry->second = Read(*Stage(1).Ask(/*stream=*/false, max_tokens, fields));
  return entry->second;
}

// What a stream says, without what the times and cuts of its chunks decide.
Json Essence(const FakeResponseWriter& writer) {
  Json choices = Json::object();
  bool done = false;
  for (const std::string& event : writer.Events()) {
    done = event == "[DONE]";
    if (done) break;
    const Json object = Json::parse(event);
    EXPECT_TRUE(object.contains("choices")) << event;
    if (!object.contains("choices")) break;
    for (const Json& choice : object.at("choices")) {
      Json& whole = choices[std::to_string(choice.at("index").get<int>())];
      if (whole.is_null()) whole = Json::object();
      whole["text"] = whole.value("text", "") + choice.at("text").get<std::string>();
      if (!choice.at("finish_reason").is_null()) whole["finish"] = choice.at("finish_reason");
      if (!choice.contains("logprobs") || choice.at("logprobs").is_null()) continue;
      for (const auto& [key, values] : choice.at("logprobs").items()) {
        if (!values.is_array()) continue;
        for (const Json& value : values) whole[key].push_back(value);
      }
    }
  }
  EXPECT_TRUE(done) << writer.body();
  return choices;
}

// The rule. `want` is the undisturbed answer.
void ExpectHonest(const Stage& stage, const Answer& answer, const Answer& want,
                  int failures_before) {
  EXPECT_NE(answer.complete, !answer.error.empty()) << "complete or an error, not both or none";
  if (answer.complete) {
    EXPECT_EQ(answer.text, want.text);
    EXPECT_EQ(answer.finish_reason, want.finish_reason);
    EXPECT_EQ(stage.Failures(), failures_before);
  } else {
    EXPECT_THAT(want.text, StartsWith(answer.text));
    EXPECT_EQ(answer.finish_reason, "") << "a reason reads as an end";
    EXPECT_EQ(stage.Failures(), failures_before + 1);
  }
}

// A node whose death is planned dies, and returns eight seconds later.
std::shared_ptr<FakeResponseWriter> ExpectServedOnReturn(Stage& stage, bool stream,
                                                         const std::string& victim,
                                                         const Answer& want) {
  auto writer = stage.Begin(stream, 6);
  EXPECT_TRUE(stage.cluster().RunUntil([&] { return stage.happened(); }));
  stage.cluster().Run(absl::Seconds(8));
  EXPECT_FALSE(writer->finished());
  stage.cluster().Start(victim);
  EXPECT_TRUE(stage.cluster().RunUntil([&] { return writer->finished(); }));
  const Answer answer = Read(*writer);
  EXPECT_TRUE(answer.complete) << answer.error;
  ExpectHonest(stage, answer, want, 0);
  return writer;
}

struct Case {
  const char* what;
  Death death;
  bool complete_alone;   // One node of each role, and the dead one stays away.
  bool complete_paired;  // Two of each.
  int max_tokens = 6;
  const char* fields = "";
};

void ExpectOutcome(const Case& c, bool stream, int pairs) {
  SCOPED_TRACE(::testing::Message() << c.what << (stream ? ", streamed" : ", whole") << ", "
                                    << pairs << " nodes of each role");
  const Answer want = Undisturbed(c.max_tokens, c.fields);
  ASSERT_TRUE(want.complete) << want.error;
  Stage stage(pairs);  // Its first request goes to the first nodes.
  stage.Plan(c.death);
  const Answer answer = Read(*stage.Ask(stream, c.max_tokens, c.fields));
  ASSERT_TRUE(stage.happened());
  ExpectHonest(stage, answer, want, /*failures_before=*/0);
  EXPECT_EQ(answer.complete, pairs > 1 ? c.complete_paired : c.complete_alone) << answer.error;
  EXPECT_TRUE(stage.cluster().RunUntil([&] { return stage.cluster().Idle(); }, absl::Minutes(1)));
}

void ExpectOutcomes(const Case& c) {
  for (const bool stream : {true, false}) {
    for (const int pairs : {1, 2}) {
      // The short form leaves out what is alike for both.
      if (testing::ForTestSize(0, 1, 1) == 0 && stream != (pairs == 1)) continue;
      ExpectOutcome(c, stream, pairs);
    }
  }
}

TEST(StreamFaultTest, DeathBetweenPrefillAndTheFirstToken) {
  // Nothing has reached the client: another pair starts over.
  ExpectOutcomes({"decode dies, the first token is lost",
                  {"prefill-0", kFirstToken, 1, /*lost=*/true, "decode-0"},
                  false,
                  true});
  ExpectOutcomes({"prefill dies with its first token",
                  {"prefill-0", kFirstToken, 1, /*lost=*/true, "prefill-0"},
                  false,
                  true});
  ExpectOutcomes({"decode dies, the first token arrives",
                  {"prefill-0", kFirstToken, 1, /*lost=*/false, "decode-0"},
                  false,
                  true});
}

TEST(StreamFaultTest, DeathInMidStream) {
  ExpectOutcomes({"decode dies after its second token",
                  {"decode-0", kTokenBatch, 2, /*lost=*/false, "decode-0"},
                  false,
                  true});
  ExpectOutcomes({"decode dies with its second token",
                  {"decode-0", kTokenBatch, 2, /*lost=*/true, "decode-0"},
                  false,
                  true});
  // It has handed the sequence off.
  ExpectOutcomes(
      {"prefill dies", {"decode-0", kTokenBatch, 1, /*lost=*/false, "prefill-0"}, true, true});
}

TEST(StreamFaultTest, DeathBetweenTheLastTokenAndTheLastWord) {
  // Six tokens were asked for and are there.
  ExpectOutcomes({"decode dies after the last token",
                  {"decode-0", kTokenBatch, 5, /*lost=*/false, "decode-0"},
                  true,
                  true});
  ExpectOutcomes({"decode dies with its last word",
                  {"decode-0", kTerminal, 1, /*lost=*/true, "decode-0"},
                  true,
                  true});
  ExpectOutcomes({"decode dies after its last word",
                  {"decode-0", kTerminal, 1, /*lost=*/false, "decode-0"},
                  true,
                  true});
  ExpectOutcomes({"prefill dies after the only token",
                  {"prefill-0", kFirstToken, 1, /*lost=*/false, "prefill-0"},
                  true,
                  true,
                  /*max_tokens=*/1});
  // The last token is missing.
  ExpectOutcomes({"decode dies with the last token",
                  {"decode-0", kTokenBatch, 5, /*lost=*/true, "decode-0"},
                  false,
                  true});
}

// Where an answer ends by itself, only the last word tells that it was to end there.
TEST(StreamFaultTest, DeathBeforeTheWordThatAnAnswerHasStopped) {
  const Answer whole = Undisturbed(40);
  auto ids = TinyTokenizer().Encode(whole.text, false);
  ASSERT_TRUE(ids.ok());
  for (const TokenId id : *ids) {
    const std::string fields = absl::StrCat(R"("stop_token_ids":[)", id, "]");
    const Answer stopped = Undisturbed(40, fields);
    if (stopped.finish_reason != "stop" || stopped.text.empty()) continue;
    for (const bool stream : {true, false}) {
      ExpectOutcome({"decode dies with the word that it stopped",
                     {"decode-0", kTerminal, 1, /*lost=*/true, "decode-0"},
                     false,
                     true,
                     40,
                     fields.c_str()},
                    stream, stream ? 2 : 1);
    }
    return;
  }
  FAIL() << "no token ends this answer";
}

// A node that is back before the client's time in the queue is over serves the request.
TEST(StreamFaultTest, TheOnlyNodeReturnsInTime) {
  const Answer want = Undisturbed(6);
  for (const char* victim : {"decode-0", "prefill-0"}) {
    for (const bool stream : {true, false}) {
      SCOPED_TRACE(victim);
      Stage stage(1);
      stage.Plan({"prefill-0", kFirstToken, 1, /*lost=*/true, victim});
      ExpectServedOnReturn(stage, stream, victim, want);
    }
  }
  for (const bool stream : {true, false}) {
    Stage stage(1);
    stage.Plan({"decode-0", kTokenBatch, 3, /*lost=*/false, "decode-0"});
    auto writer = ExpectServedOnReturn(stage, stream, "decode-0", want);
    if (stream) {
      EXPECT_THAT(writer->body(), HasSubstr(": waiting")) << "so that no proxy takes it for dead";
    }
  }
}

// Everything that decides a token and everything that is said of it: seeds, penalties, biases,
// bounds, log-probabilities, stop strings over token borders, several choices.
class WhateverWasAskedForTest : public ::testing::TestWithParam<Classes> {};

TEST_P(WhateverWasAskedForTest, GoesOnAsIfNothingHadHappened) {
  const std::vector<std::string> asked = {
      R"("temperature":1.3,"seed":7,"top_p":0.9,"logprobs":3)",
      R"("temperature":0.8,"seed":8,"n":3,"top_k":40,"min_p":0.01)",
      R"("temperature":1,"seed":9,"presence_penalty":1.5,"frequency_penalty":1.1,)"
      R"("repetition_penalty":1.3,"logit_bias":{"5":4,"17":-100},"logprobs":0)",
      R"("temperature":1.1,"seed":11,"echo":true,"logprobs":2)",
      R"("temperature":1,"seed":10,"stop":["e ","qq"],"min_tokens":3)"};
  int deaths = 0;
  for (const std::string& fields : asked) {
    for (const int count : {1, 4, 9, 15}) {
      if (testing::ForTestSize(0, 1, 1) == 0 && count % 2 == 0) continue;
      SCOPED_TRACE(::testing::Message() << fields << ", death at batch " << count);
      const Json want = Essence(*Stage(2, GetParam()).Ask(/*stream=*/true, 20, fields));
      Stage stage(2, GetParam());
      stage.Plan({"decode-0", kTokenBatch, count, /*lost=*/count % 3 == 0, "decode-0"});
      auto writer = stage.Ask(/*stream=*/true, 20, fields);
      EXPECT_EQ(Essence(*writer), want);
      EXPECT_EQ(stage.Failures(), 0);
      deaths += stage.happened() ? 1 : 0;
    }
  }
  EXPECT_GE(deaths, static_cast<int>(asked.size())) << "an answer may end before";
}

INSTANTIATE_TEST_SUITE_P(Classes, WhateverWasAskedForTest,
                         ::testing::Values(Classes::kLike, Classes::kUnlike));

class UsageTest : public ::testing::TestWithParam<Classes> {};

TEST_P(UsageTest, TellsOfFailovers) {
  const std::string fields = R"("stream_options":{"include_usage":true})";
  Stage stage(2, GetParam());
  auto writer = stage.Ask(true, 6, fields);
  EXPECT_THAT(writer->body(), ::testing::Not(HasSubstr("failovers")));
  stage.Plan({"decode-0", kTokenBatch, 2, /*lost=*/false, "decode-0"});
  while (!stage.happened()) writer = stage.Ask(true, 6, fields);
  const std::vector<std::string> events = writer->Events();
  ASSERT_GE(events.size(), 2u);
  const Json usage = Json::parse(events[events.size() - 2]).at("usage");
  EXPECT_EQ(usage.at("lynx"), Json({{"failovers", 1}}));
  EXPECT_EQ(usage.at("completion_tokens"), 6);
  EXPECT_EQ(usage.at("prompt_tokens"), TinyTokenizer().Encode("import os", true)->size());
}

INSTANTIATE_TEST_SUITE_P(Classes, UsageTest, ::testing::Values(Classes::kLike, Classes::kUnlike));

// Nodes of one class whose answers differ: what the client has is not what would follow.
TEST(StreamFaultTest, AnAnswerThatIsNotRepeatedAlikeIsAnError) {
  const Answer want = Read(*Stage(1, Classes::kUnlike).Ask(/*stream=*/false, 6));
  ASSERT_TRUE(want.complete) << want.error;
  for (const bool stream : {true, false}) {
    Stage stage(2, Classes::kUnlike, /*stubborn=*/"decode-1");
    stage.Plan({"decode-0", kTokenBatch, 3, /*lost=*/false, "decode-0"});
    const Answer answer = Read(*stage.Ask(stream, 6));
    ASSERT_TRUE(stage.happened());
    ExpectHonest(stage, answer, want, /*failures_before=*/0);
    EXPECT_THAT(answer.error, HasSubstr("gave another answer"));
    EXPECT_TRUE(stage.cluster().RunUntil([&] { return stage.cluster().Idle(); }, absl::Minutes(1)));
  }
}

// Two choices, of which one is lost: the answer is not complete.
TEST(StreamFaultTest, OneLostChoiceIsAnErrorOfTheWhole) {
  Stage stage(1);
  stage.Plan({"decode-0", kTokenBatch, 3, /*lost=*/false, "decode-0"});
  auto writer = stage.Ask(true, 20, R"("n":2)");
  ASSERT_TRUE(stage.happened());
  const std::vector<std::string> events = writer->Events();
  ASSERT_FALSE(events.empty());
  EXPECT_THAT(events.back(), HasSubstr("\"error\""));
  EXPECT_THAT(writer->body(), ::testing::Not(HasSubstr("[DONE]")));
  EXPECT_EQ(stage.Failures(), 1);
}

// Every message of an answer is the last one of its speaker once. The other nodes of two pairs
// finish it; alone, a node may leave an error.
TEST(StreamFaultTest, DeathAtAnyMessageIsNeverAShortSuccess) {
  const std::vector<std::pair<std::string, Body>> messages = {{"decode-0", Body::kGrant},
                                                              {"prefill-0", kFirstToken},
                                                              {"prefill-0", kTerminal},
                                                              {"decode-0", kTokenBatch},
                                                              {"decode-0", kTerminal}};
  constexpr int kTokens = 4;
  const Answer want = Undisturbed(kTokens);
  int deaths = 0;
  for (const auto& [speaker, kind] : messages) {
    for (int count = 1; count <= (kind == kTokenBatch ? kTokens - 1 : 1);
         count += testing::ForTestSize(kTokens - 2, 1, 1)) {
      for (const char* victim : {"decode-0", "prefill-0"}) {
        for (const bool lost : {true, false}) {
          for (const bool stream : {true, false}) {
            if (testing::ForTestSize(0, 1, 1) == 0 && stream != lost) continue;
            SCOPED_TRACE(::testing::Message()
                         << victim << " dies at message " << count << " of kind " << kind
                         << (lost ? ", lost" : "") << (stream ? ", streamed" : ", whole"));
            for (const int pairs : {1, 2}) {
              Stage stage(pairs);
              stage.Plan({speaker, kind, count, lost, victim});
              const Answer answer = Read(*stage.Ask(stream, kTokens));
              ASSERT_TRUE(stage.happened());
              ExpectHonest(stage, answer, want, 0);
              EXPECT_TRUE(answer.complete || pairs == 1) << answer.error;
              ++deaths;
            }
          }
        }
      }
    }
  }
  EXPECT_GE(deaths, testing::ForTestSize(20, 40, 40));
}

}  // namespace
}  // namespace lynx
