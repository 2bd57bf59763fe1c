#include "services/router/session/cluster_service.h"

#include <cstdlib>
#include <iostream>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "services/router/placement/least_load.h"
#include "tests/services/router/fake_network.h"
#include "tests/services/router/session/fake_cluster.h"
#include "tests/support/status_matchers.h"

namespace lynx::router {
namespace {

using ::lynx::testing::IsOk;
using ::lynx::testing::StatusIs;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::ElementsAreArray;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;

class NoResolver final : public Resolver {
 public:
  void Resolve(const std::string&, Callback) override { FAIL() << "only addresses here"; }
};

// Checks the promises of SequenceSink as it listens.
class Client final : public SequenceSink {
 public:
  void OnFirstToken(const proto::FirstToken& first) override {
    Hear();
    EXPECT_TRUE(!first_ && tokens.empty());
    first_ = true;
    if (first.has_token()) tokens.push_back(first.token().id());
    React();
  }
  void OnTokens(std::span<const proto::Token* const> more) override {
    Hear();
    EXPECT_TRUE(first_);
    EXPECT_FALSE(more.empty());
    for (const proto::Token* token : more) tokens.push_back(token->id());
    React();
  }
  void OnResumed() override {
    Hear();
    EXPECT_TRUE(first_);
    resumed_at.push_back(tokens.size());
  }
  void OnEnd(const SequenceEnd& its_end) override {
    Hear();
    end = its_end;
    if (react) react(*this);
  }

  void Cancel() {
    cancelled = true;
    service->Cancel(id);
  }

  ClusterService* service = nullptr;
  SequenceId id = 0;
  std::vector<int> tokens;
  std::vector<size_t> resumed_at;  // Tokens that were there then.
  std::optional<SequenceEnd> end;
  bool starting = false;
  bool cancelled = false;
  size_t cancel_at = SIZE_MAX;  // Cancels from inside the callback once it has so many tokens.
  std::function<void(Client&)> react;

 private:
  void Hear() {
    EXPECT_FALSE(starting) << "called inside Start";
    EXPECT_FALSE(cancelled) << "called after Cancel";
    EXPECT_FALSE(end.has_value()) << "called after OnEnd";
  }
  void React() {
    if (tokens.size() >= cancel_at) Cancel();
  }
  bool first_ = false;
};

class ClusterServiceTest : public ::testing::Test {
 protected:
  ~ClusterServiceTest() override {
    if (service_ != nullptr) service_->Shutdown();
  }

  void Make(int prefill = 1, int decode = 1, int decode_blocks = 64) {
    NodeRegistry::Options options;
    options.incarnation = 7;
    for (int i = 1; i <= prefill; ++i) {
      options.prefill.push_back(absl::StrCat("10.0.1.", i, ":1"));
      cluster_.Add(options.prefill.back(), proto::ROLE_PREFILL);
    }
    for (int i = 1; i <= decode; ++i) {
      options.decode.push_back(absl::StrCat("10.0.2.", i, ":1"));
      cluster_.Add(options.decode.back(), proto::ROLE_DECODE, decode_blocks)
          .set_prompt_rows(prompt_rows_);
    }
    auto nodes = NodeRegistry::Create(options, loop_, network_, resolver_, metrics_);
    ASSERT_THAT(nodes, IsOk());
    nodes_ = *std::move(nodes);
    service_ =
        std::make_unique<ClusterService>(options_, loop_, *nodes_, std::make_unique<LeastLoad>(),
                                         metrics_, [this] { return next_id_++; });
    nodes_->Start(*service_);
    loop_.RunDue();
    ASSERT_TRUE(service_->View().ready) << service_->View().reason;
  }
  FakeNode& Prefill(size_t i = 0) { return *cluster_.nodes()[i]; }
  FakeNode& Decode(size_t i = 0) {
    size_t prefills = 0;
    for (const auto& member : nodes_->nodes().members()) {
      if (member.second.role == proto::ROLE_PREFILL) ++prefills;
    }
    return *cluster_.nodes()[prefills + i];
  }
  absl::Status Start(Client& client, int prompt_tokens, int max_new_tokens, uint64_t seed = 1,
                     absl::Duration deadline = absl::InfiniteDuration(),
                     const std::string& policy = "") {
    SequenceRequest request;
    request.prompt.assign(static_cast<size_t>(prompt_tokens), 1);
    request.sampling.set_max_new_tokens(max_new_tokens);
    request.sampling.set_seed(seed);
    request.sampling.set_policy(policy);
    request.deadline = loop_.Now() + deadline;
    client.service = service_.get();
    client.starting = true;
    auto id = service_->Start(std::move(request), client);
    client.starting = false;
    if (id.ok()) client.id = *id;
    return id.status();
  }
  absl::Status StartAs(Client& client, int32_t priority, TenantId tenant) {
    SequenceRequest request{
        .prompt = {1, 2, 3}, .sampling = {}, .priority = priority, .tenant = tenant};
    request.sampling.set_max_new_tokens(3);
    auto id = service_->Start(std::move(request), client);
    if (id.ok()) client.id = *id;
    return id.status();
  }
  void ExpectAnswer(const Client& client, uint64_t seed, int max_new_tokens) {
    ASSERT_TRUE(client.end.has_value());
    ASSERT_THAT(client.end->status, IsOk());
    const FakeAnswer answer = AnswerTo(seed, max_new_tokens);
    EXPECT_THAT(client.tokens, ElementsAreArray(answer.tokens));
    EXPECT_EQ(client.end->finish_reason, answer.stop ? proto::Terminal::FINISH_REASON_STOP
                                                     : proto::Terminal::FINISH_REASON_LENGTH);
  }
  // Of each kind in turn all.
  void LoseMessages();
  void ExpectNothingHeld() {
    EXPECT_TRUE(service_->Idle());
    EXPECT_TRUE(Shows("lynx_router_queued_requests 0"));
    EXPECT_TRUE(Shows("lynx_router_inflight_sequences 0"));
    for (const auto& node : cluster_.nodes()) {
      EXPECT_EQ(node->live(), 0u);
      EXPECT_EQ(node->free_blocks(), node->blocks());
    }
  }
  bool Shows(const std::string& line) {
    return metrics_.Render().find(line + "\n") != std::string::npos;
  }

  ManualClock clock_;
  SimEventLoop loop_{clock_};
  FakeNetwork network_{loop_};
  NoResolver resolver_;
  telemetry::Registry metrics_;
  FakeCluster cluster_{loop_, network_};
  ClusterService::Options options_;
  int32_t prompt_rows_ = 0;  // Of decode nodes.
  uint64_t next_id_ = 1;
  std::unique_ptr<NodeRegistry> nodes_;
  std::unique_ptr<ClusterService> service_;
};

TEST_F(ClusterServiceTest, DeliversWholeAnswersAndKeepsNothing) {
  Make();
  std::vector<std::unique_ptr<Client>> clients;
  for (uint64_t seed = 1; seed <= 30; ++seed) {
    clients.push_back(std::make_unique<Client>());
    ASSERT_THAT(Start(*clients.back(), 20, 1 + static_cast<int>(seed) % 9, seed), IsOk());
  }
  loop_.Advance(absl::Seconds(5));
  for (uint64_t seed = 1; seed <= 30; ++seed) {
    SCOPED_TRACE(seed);
    ExpectAnswer(*clients[seed - 1], seed, 1 + static_cast<int>(seed) % 9);
  }
  ExpectNothingHeld();
  EXPECT_TRUE(Shows("lynx_router_sequences_total{outcome=\"finished\"} 30"));
  EXPECT_TRUE(Shows("lynx_router_routing_decisions_total{decision=\"disaggregated\"} 30"));
  EXPECT_TRUE(Shows("lynx_router_stage_duration_seconds_count{stage=\"prefill\"} 30"));
}

TEST_F(ClusterServiceTest, WhatWouldComeTooLateIsRefusedAtOnce) {
  options_.slo_ttft = absl::Seconds(1);
  options_.refuse_late = true;
  Make();
  Prefill().set_row_time(absl::Milliseconds(10));
  Prefill().set_mute(true);
  loop_.Advance(absl::Seconds(1));  // A heartbeat tells.
  Client first;
  ASSERT_THAT(Start(first, 90, 5), IsOk());
  loop_.Advance(absl::Milliseconds(1));
  Client second;
  EXPECT_THAT(Start(second, 20, 5), StatusIs(absl::StatusCode::kResourceExhausted,
                                             AllOf(HasSubstr("about 1.1s"), HasSubstr("is 1s"))))
      << "90 rows wait there";
  Client short_one;
  EXPECT_THAT(Start(short_one, 5, 5), IsOk());
  EXPECT_TRUE(Shows("lynx_router_rejections_total{reason=\"late\"} 1"));
  first.Cancel();
  short_one.Cancel();
  loop_.Advance(absl::Seconds(1));
  Client third;
  EXPECT_THAT(Start(third, 20, 5), IsOk());
  third.Cancel();
  loop_.Advance(absl::Seconds(1));
  ExpectNothingHeld();
}

TEST_F(ClusterServiceTest, WithoutPrefillNodesDecodeNodesComputeThePrompts) {
  prompt_rows_ = 64;
  Make(0, 2);
  std::vector<std::unique_ptr<Client>> clients;
  for (uint64_t seed = 1; seed <= 30; ++seed) {
    clients.push_back(std::make_unique<Client>());
    ASSERT_THAT(Start(*clients.back(), 20, 1 + static_cast<int>(seed) % 9, seed), IsOk());
  }
  clients.front()->Cancel();
  loop_.Advance(absl::Milliseconds(25));
  clients.back()->Cancel();
  loop_.Advance(absl::Seconds(5));
  for (uint64_t seed = 2; seed < 30; ++seed) {
    SCOPED_TRACE(seed);
    ExpectAnswer(*clients[seed - 1], seed, 1 + static_cast<int>(seed) % 9);
  }
  for (size_t i : {0, 1}) EXPECT_GT(Decode(i).prefills(), 0);
  ExpectNothingHeld();
  EXPECT_TRUE(Shows("lynx_router_routing_decisions_total{decision=\"disaggregated\"} 0"));
}

TEST_F(ClusterServiceTest, WhenTheLastPrefillNodeGoesDecodeNodesComputeThePrompts) {
  prompt_rows_ = 64;
  Make(1, 1);
  Prefill().set_mute(true);
  Client client;
  ASSERT_THAT(Start(client, 20, 4), IsOk());
  loop_.Advance(absl::Seconds(1));
  EXPECT_EQ(Prefill().prefills(), 1);
  Prefill().SetOnline(false);
  loop_.Advance(absl::Seconds(10));
  ExpectAnswer(client, 1, 4);
  EXPECT_TRUE(service_->View().ready);
  EXPECT_TRUE(Shows("lynx_router_routing_decisions_total{decision=\"local\"} 1"));
  ExpectNothingHeld();
}

TEST_F(ClusterServiceTest, AShortPromptDoesNotWaitForAPrefillNodeThatIsBusy) {
  prompt_rows_ = 64;
  Make(1, 1);
  Prefill().set_row_time(absl::Milliseconds(1));
  Prefill().set_mute(true);
  Decode().set_row_time(absl::Milliseconds(1));
  loop_.Advance(absl::Seconds(1));  // Heartbeats tell.
  Client long_one;
  Client short_one;
  ASSERT_THAT(Start(long_one, 500, 4), IsOk());
  loop_.Advance(absl::Milliseconds(10));
  EXPECT_EQ(Prefill().prefills(), 1);
  ASSERT_THAT(Start(short_one, 20, 4), IsOk());
  loop_.Advance(absl::Seconds(1));
  ExpectAnswer(short_one, 1, 4);
  EXPECT_EQ(Prefill().prefills(), 1);
  long_one.Cancel();
  loop_.Advance(absl::Seconds(1));
  ExpectNothingHeld();
}

TEST_F(ClusterServiceTest, ANodeThatRefusesAPromptOfItsOwnGrantIsNotAskedAgain) {
  prompt_rows_ = 64;
  Make(1, 1);
  Prefill().set_row_time(absl::Milliseconds(1));
  Decode().set_row_time(absl::Milliseconds(1));
  loop_.Advance(absl::Seconds(1));
  Client mute;
  Prefill().set_mute(true);
  ASSERT_THAT(Start(mute, 500, 4), IsOk());
  loop_.Advance(absl::Milliseconds(10));
  Prefill().set_mute(false);
  Client client;
  ASSERT_THAT(Start(client, 20, 4), IsOk());
  Decode().set_refuses_prompts(true);
  loop_.Advance(absl::Seconds(1));
  ExpectAnswer(client, 1, 4);
  EXPECT_EQ(Decode().prefills(), 1);
  EXPECT_EQ(Prefill().prefills(), 2);
  mute.Cancel();
  loop_.Advance(absl::Seconds(1));
  ExpectNothingHeld();
}

// Two classes of nodes, of which "a" has fewer.
class MixedClassesTest : public ClusterServiceTest {
 protected:
  MixedClassesTest() {
    Make(3, 4);
    Prefill(0).set_numeric_class("a");
    Decode(0).set_numeric_class("a");
    for (size_t i : {1, 2}) Prefill(i).set_numeric_class("b");
    for (size_t i : {1, 2, 3}) Decode(i).set_numeric_class("b");
    loop_.Advance(absl::Seconds(1));  // Heartbeats tell.
  }
  // Starts so many sequences and waits for their answers.
  void Serve(int count, const std::string& policy = "") {
    std::vector<std::unique_ptr<Client>> clients;
    for (int i = 0; i < count; ++i) {
      clients.push_back(std::make_unique<Client>());
      ASSERT_THAT(Start(*clients.back(), 20, 4, 1, absl::InfiniteDuration(), policy), IsOk());
    }
    loop_.Advance(absl::Seconds(5));
    for (const auto& client : clients) ExpectAnswer(*client, 1, 4);
    ExpectNothingHeld();
  }
};

TEST_F(MixedClassesTest, ExactSequencesStayInTheLargestPair) {
  Serve(30);
  EXPECT_EQ(Prefill(0).prefills() + Decode(0).reserves(), 0);
  for (size_t i : {1, 2}) EXPECT_GT(Prefill(i).prefills(), 0);
  for (size_t i : {1, 2, 3}) EXPECT_GT(Decode(i).reserves(), 0);
}

TEST_F(MixedClassesTest, ExactSequencesWaitForTheirPairRatherThanLeaveIt) {
  for (size_t i : {1, 2}) Prefill(i).set_busy(true);
  Client client;
  ASSERT_THAT(Start(client, 20, 4), IsOk());
  loop_.Advance(absl::Seconds(2));
  EXPECT_FALSE(client.end.has_value());
  EXPECT_EQ(Prefill(0).prefills() + Decode(0).reserves(), 0);
  Prefill(2).set_busy(false);
  loop_.Advance(absl::Seconds(2));
  ExpectAnswer(client, 1, 4);
}

TEST_F(MixedClassesTest, ExactSequencesMoveOnWhenTheirPairIsGone) {
  for (size_t i : {1, 2}) Prefill(i).SetOnline(false);
  loop_.Advance(absl::Seconds(7));
  Serve(10);
  EXPECT_EQ(Prefill(0).prefills(), 10);
  EXPECT_EQ(Decode(0).reserves(), 10);
}

// The bits that an answer began with are those of "b".
TEST_F(MixedClassesTest, ExactAnswersGoOnInTheirOwnPairOnly) {
  Client client;
  ASSERT_THAT(Start(client, 20, 300, 4), IsOk());
  loop_.Advance(absl::Milliseconds(100));
  ASSERT_GT(client.tokens.size(), 3u);
  for (size_t i : {1, 2, 3}) {
    Decode(i).SetOnline(false);
    Decode(i).Restart();
  }
  loop_.Advance(absl::Seconds(10));
  EXPECT_FALSE(client.end.has_value());
  EXPECT_EQ(Prefill(0).prefills() + Decode(0).reserves(), 0);
  Client other;  // Its answer has not begun: it may go to "a".
  ASSERT_THAT(Start(other, 20, 4, 4), IsOk());
  loop_.Advance(absl::Seconds(1));
  ExpectAnswer(other, 4, 4);
  EXPECT_EQ(Decode(0).reserves(), 1);
  Decode(2).SetOnline(true);
  loop_.Advance(absl::Seconds(10));
  ExpectAnswer(client, 4, 300);
  EXPECT_EQ(Decode(0).reserves(), 1);
}

// Prefill nodes of class "b" and decode nodes of "c": prefill cannot give what was decoded the bits
// that it had.
class UnlikeClassesTest : public MixedClassesTest {
 protected:
  UnlikeClassesTest() {
    for (size_t i : {0, 1, 2}) Prefill(i).set_numeric_class("b");
    for (size_t i : {0, 1, 2, 3}) Decode(i).set_numeric_class("c");
    loop_.Advance(absl::Seconds(1));
  }
  // Starts an answer of 300 tokens; how many of them it has when its decode node dies.
  size_t StartAndBreak(Client& client, const std::string& policy = "") {
    EXPECT_THAT(Start(client, 20, 300, 4, absl::InfiniteDuration(), policy), IsOk());
    loop_.Advance(absl::Milliseconds(100));
    EXPECT_GT(client.tokens.size(), 3u);
    for (size_t i : {0, 1, 2, 3}) {
      if (Decode(i).live() == 0) continue;
      Decode(i).Restart();
      Decode(i).SendStatus();
    }
    return client.tokens.size();
  }
  int Given() {
    int given = 0;
    for (size_t i : {0, 1, 2}) given += Prefill(i).given();
    return given;
  }
};

TEST_F(UnlikeClassesTest, ExactAnswersAreRepeated) {
  Client client;
  const size_t before = StartAndBreak(client);
  loop_.Advance(absl::Seconds(10));
  ExpectAnswer(client, 4, 300);
  EXPECT_THAT(client.resumed_at, ElementsAre(before));
  EXPECT_EQ(Given(), 0);
  EXPECT_TRUE(Shows("lynx_router_failovers_total{result=\"resumed\"} 1"));
  EXPECT_TRUE(Shows("lynx_router_stage_duration_seconds_count{stage=\"prefill\"} 1"))
      << "that of the first token that the client saw";
  ExpectNothingHeld();
}

TEST_F(UnlikeClassesTest, LossyAnswersGoOn) {
  Client client;
  const size_t before = StartAndBreak(client, "lynx:alpha=3,beta=3,floor=1");
  loop_.Advance(absl::Seconds(10));
  ExpectAnswer(client, 4, 300);
  EXPECT_THAT(client.resumed_at, ElementsAre(before));
  EXPECT_EQ(Given(), static_cast<int>(before));
}

// Neither to the pair of equal classes that a node makes, nor to a node that remaps.
TEST_F(UnlikeClassesTest, ExactAnswersAreRepeatedInTheirOwnPairOnly) {
  Client client;
  const size_t before = StartAndBreak(client);
  Decode(0).set_numeric_class("b");
  Decode(1).set_remaps(true);
  for (size_t i : {2, 3}) Decode(i).set_busy(true);
  for (size_t i : {0, 1}) Decode(i).SendStatus();
  const int elsewhere = Decode(0).reserves() + Decode(1).reserves();
  loop_.Advance(absl::Seconds(10));
  EXPECT_EQ(client.tokens.size(), before);
  EXPECT_FALSE(client.end.has_value());
  Decode(3).set_busy(false);
  loop_.Advance(absl::Seconds(10));
  ExpectAnswer(client, 4, 300);
  EXPECT_EQ(Decode(0).reserves() + Decode(1).reserves(), elsewhere);
}

TEST_F(UnlikeClassesTest, AnAnswerWhosePairStaysAwayEnds) {
  Client client;
  const size_t before = StartAndBreak(client);
  for (size_t i : {0, 1, 2, 3}) Decode(i).set_numeric_class("b");
  for (size_t i : {0, 1, 2, 3}) Decode(i).SendStatus();
  loop_.Advance(options_.session.resume_timeout + absl::Seconds(1));
  EXPECT_EQ(client.tokens.size(), before);
  ASSERT_TRUE(client.end.has_value());
  EXPECT_THAT(client.end->status,
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("no nodes of the numeric class")));
}

TEST_F(UnlikeClassesTest, AnAnswerThatIsNotRepeatedAlikeEnds) {
  Client client;
  const size_t before = StartAndBreak(client);
  for (size_t i : {0, 1, 2, 3}) Decode(i).set_errs(true);
  loop_.Advance(absl::Seconds(10));
  EXPECT_EQ(client.tokens.size(), before);
  EXPECT_THAT(client.resumed_at, IsEmpty());
  ASSERT_TRUE(client.end.has_value());
  EXPECT_THAT(client.end->status,
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("gave another answer: token 1 is")));
  EXPECT_TRUE(Shows("lynx_router_failovers_total{result=\"failed\"} 1"));
  ExpectNothingHeld();
}

// Their prompts have the bits of "b" and so has what decode nodes of "b" compute; those of "c"
// compute none.
TEST_F(MixedClassesTest, ExactPromptsAreComputedOnDecodeNodesOfTheirClassOnly) {
  for (size_t i : {0, 1, 2}) {
    Prefill(i).set_row_time(absl::Milliseconds(10));
    Prefill(i).set_numeric_class("b");
  }
  for (size_t i : {0, 1, 2, 3}) {
    Decode(i).set_row_time(absl::Microseconds(1));
    Decode(i).set_prompt_rows(64);
    Decode(i).set_numeric_class("c");
  }
  loop_.Advance(absl::Seconds(1));
  Serve(30);
  for (size_t i : {0, 1, 2, 3}) EXPECT_EQ(Decode(i).prefills(), 0);
  for (size_t i : {0, 1, 2, 3}) Decode(i).set_numeric_class("b");
  loop_.Advance(absl::Seconds(1));
  Serve(30);
  for (size_t i : {0, 1, 2, 3}) EXPECT_GT(Decode(i).prefills(), 0);
}

TEST_F(MixedClassesTest, LossySequencesGoAnywhere) {
  Serve(30, "lynx:alpha=3,beta=3,floor=1");
  for (size_t i : {0, 1, 2}) EXPECT_GT(Prefill(i).prefills(), 0) << i;
  for (size_t i : {0, 1, 2, 3}) EXPECT_GT(Decode(i).reserves(), 0) << i;
}

TEST_F(MixedClassesTest, ANodeThatRemapsMakesThoseThatDoNotSayLossy) {
  for (size_t i : {0, 1, 2, 3}) Decode(i).set_remaps(true);
  loop_.Advance(absl::Seconds(1));
  Serve(30);
  EXPECT_GT(Decode(0).reserves(), 0);
  const int before = Decode(0).reserves() + Prefill(0).prefills();
  Serve(30, "exact");
  EXPECT_EQ(Decode(0).reserves() + Prefill(0).prefills(), before);
}

TEST_F(ClusterServiceTest, EverySeriesExistsFromTheStart) {
  Make();
  for (const char* series :
       {"lynx_router_queued_requests 0", "lynx_router_rejections_total{reason=\"queue_full\"} 0",
        "lynx_router_rejections_total{reason=\"too_large\"} 0",
        "lynx_router_retries_total{reason=\"node_gone\",stage=\"prefill\"} 0",
        "lynx_router_failovers_total{result=\"failed\"} 0", "lynx_router_open_circuits 0",
        "lynx_router_stage_duration_seconds_count{stage=\"decode_wait\"} 0",
        "lynx_router_queue_duration_seconds_count{outcome=\"timeout\"} 0",
        "lynx_router_ignored_messages_total{reason=\"unknown_sequence\"} 0",
        "lynx_router_nodes{role=\"prefill\",state=\"suspect\"} 0"}) {
    EXPECT_TRUE(Shows(series)) << series;
  }
}

TEST_F(ClusterServiceTest, EqualNodesShareTheWork) {
  Make(3, 3);
  std::vector<std::unique_ptr<Client>> clients;
  for (uint64_t seed = 1; seed <= 30; ++seed) {
    clients.push_back(std::make_unique<Client>());
    ASSERT_THAT(Start(*clients.back(), 20, 4, seed), IsOk());
  }
  loop_.Advance(absl::Seconds(5));
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(Prefill(i).prefills(), 10);
    EXPECT_EQ(Decode(i).reserves(), 10);
  }
}

TEST_F(ClusterServiceTest, WhatNeverFitsIsRefusedAtOnceAndBlocksNobody) {
  Make(1, 1, /*decode_blocks=*/8);
  Client large, grows, small;
  EXPECT_THAT(Start(large, 129, 1), StatusIs(absl::StatusCode::kOutOfRange,
                                             AllOf(HasSubstr("129 tokens"), HasSubstr("has 8"))));
  EXPECT_THAT(Start(grows, 100, 29), StatusIs(absl::StatusCode::kOutOfRange));
  EXPECT_THAT(Start(small, 100, 28), IsOk());
  loop_.Advance(absl::Seconds(1));
  EXPECT_TRUE(small.end.has_value());
  EXPECT_TRUE(Shows("lynx_router_rejections_total{reason=\"too_large\"} 2"));
}

TEST_F(ClusterServiceTest, WhatFitsOnlyANodeThatIsAwayWaitsAside) {
  Make(1, 1, /*decode_blocks=*/8);
  FakeNode& big = cluster_.Add("10.0.2.9:1", proto::ROLE_DECODE, 64);
  service_.reset();
  nodes_.reset();
  NodeRegistry::Options options;
  options.incarnation = 8;
  options.prefill = {"10.0.1.1:1"};
  options.decode = {"10.0.2.1:1", "10.0.2.9:1"};
  nodes_ = *NodeRegistry::Create(options, loop_, network_, resolver_, metrics_);
  service_ =
      std::make_unique<ClusterService>(options_, loop_, *nodes_, std::make_unique<LeastLoad>(),
                                       metrics_, [this] { return next_id_++; });
  nodes_->Start(*service_);
  loop_.RunDue();
  big.SetOnline(false);
  loop_.Advance(absl::Seconds(3));  // Suspect: it may come back.
  Client large, small;
  ASSERT_THAT(Start(large, 500, 2, 1), IsOk());
  ASSERT_THAT(Start(small, 20, 2, 2), IsOk());
  loop_.Advance(absl::Seconds(1));
  ExpectAnswer(small, 2, 2);
  EXPECT_FALSE(large.end.has_value());
  big.SetOnline(true);
  loop_.Advance(absl::Seconds(2));
  ExpectAnswer(large, 1, 2);
}

TEST_F(ClusterServiceTest, WithoutAReadyPairNothingStarts) {
  Make();
  Decode().set_state(proto::NODE_STATE_DRAINING);
  loop_.Advance(absl::Seconds(1));
  Client client;
  EXPECT_THAT(Start(client, 5, 5),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("10.0.2.1:1 is draining")));
  EXPECT_FALSE(service_->View().ready);
  EXPECT_TRUE(Shows("lynx_router_rejections_total{reason=\"not_ready\"} 1"));
}

TEST_F(ClusterServiceTest, AFullQueueRefusesAndAWaitingRequestTimesOut) {
  options_.admission = {.max_in_flight = 8, .max_queued = 2};
  Make();
  Decode().set_busy(true);
  Client a, b, c;
  ASSERT_THAT(Start(a, 5, 5), IsOk());
  loop_.Advance(absl::Milliseconds(1));  // Refused as busy, so it is back in the queue.
  ASSERT_THAT(Start(b, 5, 5), IsOk());
  EXPECT_THAT(Start(c, 5, 5), StatusIs(absl::StatusCode::kResourceExhausted));
  EXPECT_TRUE(Shows("lynx_router_queued_requests 2"));
  const int reserves = Decode().reserves();
  loop_.Advance(absl::Seconds(10));
  EXPECT_LE(Decode().reserves() - reserves, 2 * 21) << "once per heartbeat and sequence";
  loop_.Advance(absl::Seconds(20));
  ASSERT_TRUE(a.end.has_value() && b.end.has_value());
  EXPECT_THAT(a.end->status,
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("no node had room")));
  EXPECT_GE(a.end->retry_after, absl::Seconds(1));
  EXPECT_TRUE(Shows("lynx_router_rejections_total{reason=\"queue_timeout\"} 2"));
  ExpectNothingHeld();
}

TEST_F(ClusterServiceTest, NodesAreToldWhoseASequenceIs) {
  Make();
  Client client;
  ASSERT_THAT(StartAs(client, 3, 7), IsOk());
  loop_.Advance(absl::Seconds(1));
  ASSERT_TRUE(client.end.has_value());
  EXPECT_THAT(Decode().last_claim(), Pair(3, 7));
  EXPECT_THAT(Prefill().last_claim(), Pair(3, 7));
}

TEST_F(ClusterServiceTest, AFullQueueKeepsThoseWhoGoFirst) {
  options_.admission = {.max_in_flight = 0, .max_queued = 2};
  Make();
  Client first, second, third, urgent;
  ASSERT_THAT(StartAs(first, 0, 7), IsOk());
  ASSERT_THAT(StartAs(second, 1, 7), IsOk());
  EXPECT_THAT(StartAs(third, 1, 7), StatusIs(absl::StatusCode::kResourceExhausted));
  ASSERT_THAT(StartAs(urgent, 0, 8), IsOk());
  ASSERT_TRUE(second.end.has_value());
  EXPECT_THAT(second.end->status, StatusIs(absl::StatusCode::kResourceExhausted));
  EXPECT_GT(second.end->retry_after, absl::ZeroDuration());
  EXPECT_TRUE(Shows("lynx_router_rejections_total{reason=\"displaced\"} 1"));
  EXPECT_TRUE(Shows("lynx_router_queued_requests 2"));
  service_->Shutdown();
}

TEST_F(ClusterServiceTest, TheQueueMovesWhenBlocksReturn) {
  Make(1, 1, /*decode_blocks=*/2);
  std::vector<std::unique_ptr<Client>> clients;
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    clients.push_back(std::make_unique<Client>());
    ASSERT_THAT(Start(*clients.back(), 20, 3, seed), IsOk());
  }
  EXPECT_TRUE(Shows("lynx_router_queued_requests 19"));
  loop_.Advance(absl::Seconds(20));
  for (uint64_t seed = 1; seed <= 20; ++seed) ExpectAnswer(*clients[seed - 1], seed, 3);
  ExpectNothingHeld();
}

TEST_F(ClusterServiceTest, InFlightIsBounded) {
  options_.admission = {.max_in_flight = 3, .max_queued = 100};
  Make();
  std::vector<std::unique_ptr<Client>> clients;
  for (uint64_t seed = 1; seed <= 10; ++seed) {
    clients.push_back(std::make_unique<Client>());
    ASSERT_THAT(Start(*clients.back(), 5, 3, seed), IsOk());
  }
  EXPECT_TRUE(Shows("lynx_router_inflight_sequences 3"));
  for (int i = 0; i < 500; ++i) {
    loop_.Advance(absl::Milliseconds(10));
    ASSERT_LE(Decode().live(), 3u);
  }
  ExpectNothingHeld();
}

// The decode side stops while requests keep coming: refuse early, and recover without a restart.
TEST_F(ClusterServiceTest, AFrozenDecodeNodeStopsAdmissionAndRecovers) {
  options_.admission = {.max_in_flight = 16, .max_queued = 8};
  Make();
  std::vector<std::unique_ptr<Client>> clients;
  Decode().SetOnline(false);
  int refused = 0;
  for (int i = 0; i < 300; ++i) {
    clients.push_back(std::make_unique<Client>());
    if (!Start(*clients.back(), 5, 3, 4).ok()) ++refused;
    loop_.Advance(absl::Milliseconds(50));
    ASSERT_LE(Prefill().live(), 16u);
  }
  EXPECT_GE(refused, 270);
  Decode().SetOnline(true);
  loop_.Advance(absl::Seconds(60));
  Client after;
  ASSERT_THAT(Start(after, 5, 3, 4), IsOk());
  loop_.Advance(absl::Seconds(1));
  ExpectAnswer(after, 4, 3);
  ExpectNothingHeld();
}

TEST_F(ClusterServiceTest, ALostDecodeNodeBeforeTheFirstTokenIsNotNoticedByTheClient) {
  Make(2, 2);
  Client client;
  ASSERT_THAT(Start(client, 5, 6, 4), IsOk());
  loop_.Advance(absl::Milliseconds(10));
  const size_t used = Decode(0).live() == 1 ? 0 : 1;
  Decode(used).Restart();
  Decode(used).SendStatus();
  loop_.Advance(absl::Seconds(3));
  ExpectAnswer(client, 4, 6);
  EXPECT_TRUE(Shows("lynx_router_retries_total{reason=\"node_gone\",stage=\"kv_transfer\"} 1"));
  ExpectNothingHeld();
}

TEST_F(ClusterServiceTest, ALostPrefillNodeBeforeTheFirstTokenIsNotNoticedByTheClient) {
  Make(2, 1);
  Client client;
  ASSERT_THAT(Start(client, 5, 6, 4), IsOk());
  loop_.Advance(absl::Milliseconds(10));
  FakeNode& used = Prefill(Prefill(0).live() == 1 ? 0 : 1);
  used.SetOnline(false);
  used.Restart();
  loop_.Advance(absl::Seconds(8));
  ExpectAnswer(client, 4, 6);
  ExpectNothingHeld();
}

TEST_F(ClusterServiceTest, ALoneNodeThatReturnsInTimeServesTheRetry) {
  Make(1, 1);
  Prefill().set_prefill_time(absl::Seconds(20));
  Client client;
  ASSERT_THAT(Start(client, 5, 6, 4), IsOk());
  loop_.Advance(absl::Milliseconds(10));
  Decode().SetOnline(false);
  Decode().Restart();
  loop_.Advance(absl::Seconds(10));
  EXPECT_FALSE(client.end.has_value());
  Decode().SetOnline(true);
  loop_.Advance(absl::Seconds(25));
  ExpectAnswer(client, 4, 6);
  ExpectNothingHeld();
}

TEST_F(ClusterServiceTest, ALostDecodeNodeInMidStreamIsNotNoticedByTheClient) {
  Make(1, 2);
  Client client;
  ASSERT_THAT(Start(client, 5, 60, 4), IsOk());
  loop_.Advance(absl::Milliseconds(100));
  const size_t delivered = client.tokens.size();
  ASSERT_GT(delivered, 3u);
  FakeNode& used = Decode(Decode(0).live() == 1 ? 0 : 1);
  used.Restart();
  used.SendStatus();
  loop_.Advance(absl::Seconds(2));
  ExpectAnswer(client, 4, 60);
  EXPECT_EQ(client.resumed_at, std::vector<size_t>{delivered});
  EXPECT_TRUE(Shows("lynx_router_retries_total{reason=\"node_gone\",stage=\"decode\"} 1"));
  EXPECT_TRUE(Shows("lynx_router_failovers_total{result=\"resumed\"} 1"));
  EXPECT_TRUE(Shows("lynx_router_failover_duration_seconds_count 1"));
  EXPECT_TRUE(Shows("lynx_router_stage_duration_seconds_count{stage=\"given_up\"} 0"))
      << "that is of the time to the first token";
  ExpectNothingHeld();
}

TEST_F(ClusterServiceTest, AStreamThatNobodyGoesOnWithEndsWithAnError) {
  options_.session.resume_timeout = absl::Seconds(10);
  Make(1, 1);
  Client client;
  ASSERT_THAT(Start(client, 5, 60, 4), IsOk());
  loop_.Advance(absl::Milliseconds(100));
  ASSERT_GT(client.tokens.size(), 3u);
  Decode().Restart();
  Decode().set_busy(true);
  Decode().SendStatus();
  loop_.Advance(absl::Seconds(9));
  EXPECT_FALSE(client.end.has_value());
  loop_.Advance(absl::Seconds(2));
  ASSERT_TRUE(client.end.has_value());
  EXPECT_THAT(client.end->status, StatusIs(absl::StatusCode::kUnavailable, HasSubstr("replaced")));
  EXPECT_TRUE(client.end->work_begun);
  EXPECT_TRUE(Shows("lynx_router_sequences_total{outcome=\"failed\"} 1"));
  EXPECT_TRUE(Shows("lynx_router_failovers_total{result=\"failed\"} 1"));
  EXPECT_TRUE(Shows("lynx_router_rejections_total{reason=\"queue_timeout\"} 0"));
  ExpectNothingHeld();
}

// Fifty streams lose their node at once; ten may begin anew, then one each 100 ms.
TEST_F(ClusterServiceTest, RetriesOfManyAreSpreadOverTime) {
  options_.retries = {.per_request = 0, .per_second = 10, .burst = 10};
  Make(1, 2, /*decode_blocks=*/2000);
  Decode(1).set_busy(true);
  loop_.Advance(absl::Seconds(1));
  std::vector<std::unique_ptr<Client>> clients;
  for (uint64_t i = 0; i < 50; ++i) {
    clients.push_back(std::make_unique<Client>());
    ASSERT_THAT(Start(*clients.back(), 5, 400, 4), IsOk());
  }
  loop_.Advance(absl::Seconds(1));
  EXPECT_EQ(Decode(0).live(), 50u);
  Decode(1).set_busy(false);
  loop_.Advance(absl::Seconds(1));
  Decode(0).Restart();
  Decode(0).set_busy(true);
  Decode(0).SendStatus();
  const int before = Decode(1).reserves();
  loop_.Advance(absl::Milliseconds(60));  // With jitter.
  EXPECT_EQ(Decode(1).reserves() - before, 10);
  loop_.Advance(absl::Seconds(2));
  EXPECT_NEAR(Decode(1).reserves() - before, 30, 1);
  loop_.Advance(absl::Seconds(20));
  for (const auto& client : clients) ExpectAnswer(*client, 4, 400);
  ExpectNothingHeld();
}

// One node takes work, answers heartbeats and does nothing.
TEST_F(ClusterServiceTest, ANodeThatFailsAgainAndAgainIsPassedOver) {
  options_.breakers = {.failures = 3, .open = absl::Seconds(100)};
  Make(1, 2);
  Decode(0).set_mute(true);
  for (int i = 0; i < 30; ++i) {
    Client client;
    ASSERT_THAT(Start(client, 5, 4, 4), IsOk());
    loop_.Advance(absl::Seconds(3));
    ExpectAnswer(client, 4, 4);
  }
  EXPECT_EQ(Decode(0).reserves(), 3);
  EXPECT_TRUE(Shows("lynx_router_open_circuits 1"));
  Decode(0).set_mute(false);
  loop_.Advance(absl::Seconds(20));
  Client a, b;  // It is tried again.
  ASSERT_THAT(Start(a, 5, 4, 4), IsOk());
  ASSERT_THAT(Start(b, 5, 4, 4), IsOk());
  loop_.Advance(absl::Seconds(1));
  ExpectAnswer(a, 4, 4);
  ExpectAnswer(b, 4, 4);
  EXPECT_EQ(Decode(0).reserves(), 4);
  EXPECT_TRUE(Shows("lynx_router_open_circuits 0"));
}

// Where nobody else is, it gets the work all the same.
TEST_F(ClusterServiceTest, TheOnlyNodeIsNeverPassedOver) {
  options_.breakers = {.failures = 1, .open = absl::Minutes(10)};
  Make(1, 1);
  Decode().set_mute(true);
  Client client;
  ASSERT_THAT(Start(client, 5, 4, 4), IsOk());
  loop_.Advance(absl::Seconds(3));
  Decode().set_mute(false);
  loop_.Advance(absl::Seconds(3));
  ExpectAnswer(client, 4, 4);
}

TEST_F(ClusterServiceTest, BusyPrefillNodesAreAskedOncePerHeartbeat) {
  Make(2, 1);
  Prefill(0).set_busy(true);
  Prefill(1).set_busy(true);
  Client client;
  ASSERT_THAT(Start(client, 5, 3, 4), IsOk());
  loop_.Advance(absl::Seconds(10));
  EXPECT_GE(Prefill(0).prefills(), 5);
  EXPECT_LE(Prefill(0).prefills(), 25);
  Prefill(1).set_busy(false);
  loop_.Advance(absl::Seconds(1));
  ExpectAnswer(client, 4, 3);
  ExpectNothingHeld();
}

TEST_F(ClusterServiceTest, CancelFreesBothSidesAtOnceInEveryState) {
  Make();
  for (int ms = 0; ms < 120; ms += 5) {
    Client client;
    ASSERT_THAT(Start(client, 5, 20, 4), IsOk());
    loop_.Advance(absl::Milliseconds(ms));
    client.Cancel();
    loop_.Advance(absl::Milliseconds(1));
    SCOPED_TRACE(ms);
    ExpectNothingHeld();
  }
  service_->Cancel(12345);
}

TEST_F(ClusterServiceTest, ALostCancelIsMadeUpFor) {
  Make();
  Client client;
  ASSERT_THAT(Start(client, 5, 60, 4), IsOk());
  loop_.Advance(absl::Milliseconds(100));
  network_.set_fault([](const proto::Envelope& e) {
    return e.has_cancel() ? std::vector<absl::Duration>{}
                          : std::vector<absl::Duration>{absl::ZeroDuration()};
  });
  client.Cancel();
  network_.set_fault(nullptr);
  EXPECT_EQ(Decode().live(), 1u);
  loop_.Advance(absl::Milliseconds(20));
  ExpectNothingHeld();
  // Its next tokens, which are answered with Cancel.
  EXPECT_TRUE(Shows("lynx_router_ignored_messages_total{reason=\"unknown_sequence\"} 1"));
}

TEST_F(ClusterServiceTest, EveryMessageTwiceChangesNothing) {
  Make(2, 2);
  network_.set_fault([](const proto::Envelope&) {
    return std::vector<absl::Duration>{absl::ZeroDuration(), absl::Milliseconds(3)};
  });
  std::vector<std::unique_ptr<Client>> clients;
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    clients.push_back(std::make_unique<Client>());
    ASSERT_THAT(Start(*clients.back(), 20, 8, seed), IsOk());
  }
  loop_.Advance(absl::Seconds(5));
  network_.set_fault(nullptr);
  loop_.Advance(absl::Minutes(1));
  for (uint64_t seed = 1; seed <= 20; ++seed) ExpectAnswer(*clients[seed - 1], seed, 8);
  ExpectNothingHeld();
}

// One kind of message is lost for good: every request still ends, by an answer or an error.
TEST_F(ClusterServiceTest, WhicheverMessageIsLostEveryRequestEnds) {
  options_.session.first_token_timeout = options_.session.token_timeout = absl::Seconds(5);
  Make(2, 2);
  LoseMessages();
}

TEST_F(ClusterServiceTest, WhicheverMessageIsLostEveryRequestEndsWithoutPrefillNodes) {
  options_.session.first_token_timeout = options_.session.token_timeout = absl::Seconds(5);
  prompt_rows_ = 64;
  Make(0, 2);
  LoseMessages();
}

void ClusterServiceTest::LoseMessages() {
  for (const auto kind :
       {proto::Envelope::kReserve, proto::Envelope::kPrefill, proto::Envelope::kCancel,
        proto::Envelope::kGrant, proto::Envelope::kRefused, proto::Envelope::kFirstToken,
        proto::Envelope::kTokenBatch, proto::Envelope::kTerminal}) {
    SCOPED_TRACE(kind);
    network_.set_fault([kind](const proto::Envelope& e) {
      return e.body_case() == kind ? std::vector<absl::Duration>{}
                                   : std::vector<absl::Duration>{absl::ZeroDuration()};
    });
    std::vector<std::unique_ptr<Client>> clients;
    for (uint64_t seed = 1; seed <= 6; ++seed) {
      clients.push_back(std::make_unique<Client>());
      ASSERT_THAT(Start(*clients.back(), 20, 8, seed), IsOk());
    }
    loop_.Advance(absl::Minutes(3));
    for (const auto& client : clients) EXPECT_TRUE(client->end.has_value());
    EXPECT_TRUE(service_->Idle());
    network_.set_fault(nullptr);
    loop_.Advance(absl::Minutes(1));
    ExpectNothingHeld();
  }
}

TEST_F(ClusterServiceTest, SinksMayCallBackFromEveryEvent) {
  Make();
  Client first, second, cancels;
  first.react = [&](Client&) { ASSERT_THAT(Start(second, 5, 5, 5), IsOk()); };
  ASSERT_THAT(Start(first, 5, 3, 4), IsOk());
  cancels.cancel_at = 1;
  ASSERT_THAT(Start(cancels, 5, 8, 8), IsOk());
  loop_.Advance(absl::Seconds(1));
  ExpectAnswer(first, 4, 3);
  ExpectAnswer(second, 5, 5);
  EXPECT_EQ(cancels.tokens.size(), 1u);
  ExpectNothingHeld();
}

TEST_F(ClusterServiceTest, TheRequestsDeadlineHoldsWhileQueuedAndWhileStreaming) {
  Make();
  Client streaming, queued;
  ASSERT_THAT(Start(streaming, 5, 500, 4, absl::Milliseconds(300)), IsOk());
  loop_.Advance(absl::Seconds(1));
  ASSERT_TRUE(streaming.end.has_value());
  EXPECT_THAT(streaming.end->status, StatusIs(absl::StatusCode::kDeadlineExceeded));
  EXPECT_GT(streaming.tokens.size(), 10u);
  Decode().set_busy(true);
  ASSERT_THAT(Start(queued, 5, 5, 4, absl::Milliseconds(300)), IsOk());
  loop_.Advance(absl::Milliseconds(301));
  ASSERT_TRUE(queued.end.has_value());
  EXPECT_THAT(queued.end->status, StatusIs(absl::StatusCode::kDeadlineExceeded));
  ExpectNothingHeld();
}

TEST_F(ClusterServiceTest, DrainRefusesNewWorkAndFinishesTheOld) {
  Make();
  Client old, fresh;
  ASSERT_THAT(Start(old, 5, 20, 4), IsOk());
  service_->Drain();
  EXPECT_FALSE(service_->View().ready);
  EXPECT_THAT(Start(fresh, 5, 5), StatusIs(absl::StatusCode::kUnavailable));
  loop_.Advance(absl::Seconds(1));
  ExpectAnswer(old, 4, 20);
  ExpectNothingHeld();
}

TEST_F(ClusterServiceTest, ShutdownEndsEverything) {
  Make();
  Client streaming, queued;
  ASSERT_THAT(Start(streaming, 5, 100, 4), IsOk());
  loop_.Advance(absl::Milliseconds(100));
  Decode().set_busy(true);
  ASSERT_THAT(Start(queued, 5, 100, 4), IsOk());
  loop_.Advance(absl::Milliseconds(10));
  service_->Shutdown();
  ASSERT_TRUE(streaming.end.has_value() && queued.end.has_value());
  EXPECT_THAT(streaming.end->status, StatusIs(absl::StatusCode::kUnavailable));
  EXPECT_THAT(queued.end->status, StatusIs(absl::StatusCode::kUnavailable));
  EXPECT_TRUE(streaming.end->work_begun);
  EXPECT_FALSE(queued.end->work_begun);
  loop_.Advance(absl::Milliseconds(10));
  ExpectNothingHeld();
}

// Random requests, cancels, deadlines, lost, doubled and late messages, pauses and restarts of
// nodes. Whatever happens: one end for each client, right tokens or an error, and nothing left
// anywhere once it is over. LYNX_TEST_SEED repeats one run.
class ClusterFuzzTest : public ClusterServiceTest, public ::testing::WithParamInterface<int> {};

TEST_P(ClusterFuzzTest, EverySequenceEndsOnceAndNothingIsLeft) {
  uint64_t seed = static_cast<uint64_t>(GetParam());
  if (const char* text = std::getenv("LYNX_TEST_SEED")) seed = std::strtoull(text, nullptr, 10);
  SCOPED_TRACE(absl::StrCat("LYNX_TEST_SEED=", seed));
  std::mt19937_64 random(seed);
  const auto below = [&](uint64_t n) { return random() % n; };
  options_.session.first_token_timeout = absl::Seconds(5);
  options_.session.token_timeout = absl::Seconds(4);
  options_.session.queue_timeout = absl::Seconds(8);
  options_.grant_lease = absl::Seconds(6);
  options_.admission = {.max_in_flight = 4 + below(20), .max_queued = 1 + below(20)};
  const bool local = seed % 3 == 0;  // Prompts may be computed on decode nodes, ...
  prompt_rows_ = local ? 64 : 0;
  Make((local && seed % 2 == 0 ? 0 : 1) + static_cast<int>(below(3)),
       1 + static_cast<int>(below(3)), /*decode_blocks=*/4 + static_cast<int>(below(12)));
  for (const auto& node : cluster_.nodes()) {  // ... where that is cheaper, or none other is.
    if (local) node->set_row_time(absl::Microseconds(1 + below(100)));
  }
  if (seed % 3 == 1) {  // Answers are repeated rather than gone on with.
    for (const auto& node : cluster_.nodes()) {
      if (node->role() == proto::ROLE_DECODE) node->set_numeric_class("another");
    }
    loop_.Advance(absl::Seconds(1));
  }

  const uint64_t lost = below(4), doubled = below(10), late = below(10);  // Percent.
  network_.set_fault([&, lost, doubled, late](const proto::Envelope&) {
    std::vector<absl::Duration> when;
    if (below(100) >= lost) when.push_back(absl::ZeroDuration());
    if (below(100) < doubled) when.push_back(absl::Milliseconds(below(300)));
    if (!when.empty() && below(100) < late) when[0] = absl::Milliseconds(below(300));
    return when;
  });

  struct Run {
    Client client;
    uint64_t seed;
    int max_new_tokens;
    bool started;
  };
  std::vector<std::unique_ptr<Run>> runs;
  const auto start = [&] {
    auto run = std::make_unique<Run>();
    run->seed = 1 + below(1000);
    run->max_new_tokens = 1 + static_cast<int>(below(30));
    if (below(5) == 0) run->client.cancel_at = 1 + below(10);
    const absl::Duration deadline =
        below(4) == 0 ? absl::Milliseconds(below(2000)) : absl::InfiniteDuration();
    run->started = Start(run->client, 1 + static_cast<int>(below(60)), run->max_new_tokens,
                         run->seed, deadline)
                       .ok();
    runs.push_back(std::move(run));
  };
  for (int event = 0; event < 200; ++event) {
    loop_.Advance(absl::Milliseconds(below(150)));
    FakeNode& node = *cluster_.nodes()[below(cluster_.nodes().size())];
    switch (below(24)) {
      case 0:
        node.Restart();
        break;
      case 1:
        node.SetOnline(false);
        loop_.Advance(absl::Milliseconds(below(3000)));
        node.SetOnline(true);
        break;
      case 2:
        node.set_busy(below(2) == 0);
        break;
      case 3:
        node.set_state(below(3) == 0 ? proto::NODE_STATE_DRAINING : proto::NODE_STATE_READY);
        break;
      case 4:
        node.set_mute(below(3) == 0);
        break;
      case 5:
      case 6:
        if (!runs.empty()) {
          Client& client = runs[below(runs.size())]->client;
          if (client.id != 0 && !client.end.has_value()) client.Cancel();
        }
        break;
      default:
        start();
    }
  }
  network_.set_fault(nullptr);
  for (const auto& node : cluster_.nodes()) {
    node->set_busy(false);
    node->set_mute(false);
    node->set_state(proto::NODE_STATE_READY);
  }
  loop_.Advance(absl::Minutes(2));

  int finished = 0;
  for (const auto& run : runs) {
    if (!run->started) {
      EXPECT_FALSE(run->client.end.has_value());
      continue;
    }
    ASSERT_NE(run->client.end.has_value(), run->client.cancelled);
    const FakeAnswer answer = AnswerTo(run->seed, run->max_new_tokens);
    ASSERT_LE(run->client.tokens.size(), answer.tokens.size());
    EXPECT_TRUE(
        std::equal(run->client.tokens.begin(), run->client.tokens.end(), answer.tokens.begin()));
    if (!run->client.cancelled && run->client.end->status.ok()) {
      ++finished;
      EXPECT_EQ(run->client.tokens.size(), answer.tokens.size());
    }
  }
  ExpectNothingHeld();
  RecordProperty("finished", finished);
  Client last;
  ASSERT_THAT(Start(last, 5, 9, 4), IsOk());
  loop_.Advance(absl::Seconds(5));
  ExpectAnswer(last, 4, 9);
}

INSTANTIATE_TEST_SUITE_P(Seeds, ClusterFuzzTest, ::testing::Range(1, 101));

}  // namespace
}  // namespace lynx::router
