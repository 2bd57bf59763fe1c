#include <algorithm>
#include <functional>
#include <memory>
#include <random>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/engine/local_generator.h"
#include "common/node/sampling_wire.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/earlier/earlier_protocol.h"
#include "tests/support/fake_model_runner.h"
#include "tests/support/faulty_channel.h"
#include "tests/support/faulty_transfer_engine.h"
#include "tests/support/metrics_sum.h"
#include "tests/support/sim_cluster.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_size.h"

// A decode node drains under answers that have begun: its sequences go on at another node with the
// KV that they had, or where that cannot be, as they do without. Whatever goes wrong meanwhile,
// each answer is the one that the model gives alone, and nothing is kept.
namespace lynx {
namespace {

using ::lynx::testing::ChannelFault;
using ::lynx::testing::FakeModelRunner;
using ::lynx::testing::FaultyChannel;
using ::lynx::testing::FaultyTransferEngine;
using ::lynx::testing::IsOk;
using ::lynx::testing::LoneEngine;
using ::lynx::testing::MetricsSum;
using ::lynx::testing::PlainSampling;
using ::lynx::testing::RecordingSink;
using ::lynx::testing::SimCluster;
using ::lynx::testing::ThroughEarlierProtocol;
using ::lynx::testing::TransferFault;

constexpr int kStreams = 6;
constexpr int32_t kTokens = 240;

std::vector<TokenId> Prompt(uint64_t seed, size_t length) {
  std::mt19937_64 rng(seed);
  std::vector<TokenId> prompt;
  for (size_t i = 0; i < length; ++i) prompt.push_back(static_cast<TokenId>(rng() % 97));
  return prompt;
}

FakeModelRunner::Options Model(int32_t kv_blocks) {
  return {.layers = 2, .kv_blocks = kv_blocks, .max_positions = 2048};
}

// What the model gives alone.
std::vector<TokenId> Answer(const std::vector<TokenId>& prompt,
                            const proto::SamplingParams& sampling) {
  static engine::Engine alone(std::make_unique<FakeModelRunner>(Model(128)),
                              {.vocab_size = 97, .max_step_rows = 64, .max_step_logits = 64});
  const engine::GenerateRequest request = {prompt, node::SamplingFromWire(sampling)};
  const auto result =
      engine::Generate(alone, std::span(&request, 1),
                       {.max_context_tokens = 2048, .max_chunk_tokens = 64, .max_sequences = 1});
  EXPECT_THAT(result, IsOk());
  std::vector<TokenId> ids;
  for (const engine::SampledToken& token : result->front().output) ids.push_back(token.id);
  return ids;
}

struct Stream {
  std::vector<TokenId> prompt;
  proto::SamplingParams sampling;
  RecordingSink sink;
  router::SequenceId id = 0;
};

class Trial {
 public:
  explicit Trial(SimCluster::Options options = {.prefill = 1, .decode = 2})
      : cluster(Wrap(options)) {}

  // `on_message` hears of every control message, `on_transfer` of every message of a hand-off, by
  // the node that sends it.
  std::function<ChannelFault(const std::string& name, const proto::Envelope&)> on_message;
  std::function<TransferFault(const std::string& name, const proto::TransferHeader&)> on_transfer;
  // Changes what is sent.
  std::function<void(const std::string& name, proto::Envelope&)> rewrite;

  // Answers of all kinds that exact mode has.
  void Submit(int count = kStreams, int32_t tokens = kTokens) {
    for (int i = 0; i < count; ++i) {
      proto::SamplingParams sampling = PlainSampling(tokens);
      if (i % 3 == 1) {
        sampling.set_temperature(1);
        sampling.set_seed(static_cast<uint64_t>(i));
      } else if (i % 3 == 2) {
        sampling.set_frequency_penalty(0.5f);
      }
      Submit(Prompt(streams.size() + 1, static_cast<size_t>(20 + 9 * i)), std::move(sampling));
    }
  }
  void Submit(std::vector<TokenId> prompt, proto::SamplingParams sampling) {
    auto stream = std::make_unique<Stream>();
    stream->prompt = prompt;
    stream->sampling = sampling;
    stream->id = cluster.Submit(std::move(prompt), std::move(sampling), stream->sink);
    streams.push_back(std::move(stream));
  }
  bool AllHave(size_t tokens) {
    return cluster.RunUntil([&] {
      return std::all_of(streams.begin(), streams.end(),
                         [&](auto& s) { return s->sink.tokens.size() >= tokens; });
    });
  }
  bool AllEnd() {
    return cluster.RunUntil([&] {
      return std::all_of(streams.begin(), streams.end(), [](auto& s) { return s->sink.ended; });
    });
  }
  void ExpectRightAnswers() {
    ASSERT_TRUE(AllEnd());
    for (size_t i = 0; i < streams.size(); ++i) {
      const Stream& stream = *streams[i];
      EXPECT_TRUE(stream.sink.end.status.ok()) << "stream " << i << ": " << stream.sink.end.status;
      EXPECT_EQ(stream.sink.ids(), oracle != nullptr
                                       ? oracle->Answer(stream.prompt, stream.sampling)
                                       : Answer(stream.prompt, stream.sampling))
          << "stream " << i;
    }
  }
  void ExpectAtRest() {
    EXPECT_TRUE(cluster.RunUntil([&] { return cluster.Idle(); }, absl::Minutes(1)));
  }
  // Of the router.
  double Moves(const std::string& result) {
    return MetricsSum(cluster.RouterMetrics(),
                      absl::StrCat("lynx_router_moves_total{result=\"", result, "\"}"));
  }
  double AllMoves() { return MetricsSum(cluster.RouterMetrics(), "lynx_router_moves_total"); }
  double Running(const std::string& name) {
    return MetricsSum(cluster.Metrics(name), "lynx_node_running_requests");
  }
  double Retries() { return MetricsSum(cluster.RouterMetrics(), "lynx_router_retries_total"); }

  std::vector<std::unique_ptr<Stream>> streams;  // Outlive the cluster.
  std::vector<std::unique_ptr<Stream>> left;
  std::unique_ptr<LoneEngine> oracle;  // Of a model with experts.
  SimCluster cluster;

 private:
  SimCluster::Options Wrap(SimCluster::Options options) {
    if (options.lynx_policy == "exact") {
      const FakeModelRunner::Options model = Model(options.kv_blocks);
      options.make_runner = [model] { return std::make_unique<FakeModelRunner>(model); };
    } else {  // It takes experts to remap.
      oracle = std::make_unique<LoneEngine>(options);
    }
    options.wrap_channel = [this](const std::string& name, EventLoop& loop,
                                  std::unique_ptr<rpc::Channel> channel) {
      auto faulty = std::make_unique<FaultyChannel>(std::move(channel), loop);
      faulty->set_script([this, name](int, const proto::Envelope& envelope) {
        return on_message ? on_message(name, envelope) : ChannelFault();
      });
      faulty->set_rewrite([this, name](proto::Envelope& envelope) {
        if (rewrite) rewrite(name, envelope);
      });
      return faulty;
    };
    options.wrap_transfer = [this](const std::string& name, EventLoop& loop,
                                   std::unique_ptr<transfer::TransferEngine> engine) {
      auto faulty = std::make_unique<FaultyTransferEngine>(std::move(engine), loop);
      faulty->set_script([this, name](int, const proto::TransferHeader& header) {
        return on_transfer ? on_transfer(name, header) : TransferFault();
      });
      return faulty;
    };
    return options;
  }
};

// Control messages of a move, those that carry the answers left out.
bool OfAMove(const proto::Envelope& envelope) {
  return envelope.has_reserve() || envelope.has_grant() || envelope.has_refused() ||
         envelope.has_hand_off() || envelope.has_terminal() || envelope.has_cancel();
}

TEST(DrainFaultTest, WhatLivesGoesOnAtThePeerWithTheKvThatItHad) {
  Trial trial;
  trial.Submit();
  ASSERT_TRUE(trial.AllHave(5));
  const double prompts =
      MetricsSum(trial.cluster.Metrics("prefill-0"), "lynx_node_prompt_tokens_total");
  const double at_node = trial.Running("decode-0");
  EXPECT_GT(at_node, 1);
  trial.cluster.Drain("decode-0");
  ASSERT_TRUE(
      trial.cluster.RunUntil([&] { return trial.cluster.idle("decode-0"); }, absl::Seconds(2)));
  EXPECT_FALSE(std::any_of(trial.streams.begin(), trial.streams.end(), [](auto& s) {
    return s->sink.ended;
  })) << "they moved, they did not end there";
  trial.cluster.Kill("decode-0");
  trial.ExpectRightAnswers();
  EXPECT_EQ(trial.Moves("moved"), at_node);
  EXPECT_EQ(trial.AllMoves(), at_node) << "none was tried twice";
  EXPECT_EQ(trial.Retries(), 0);
  EXPECT_EQ(MetricsSum(trial.cluster.Metrics("prefill-0"), "lynx_node_prompt_tokens_total"),
            prompts)
      << "nothing is computed again";
  trial.cluster.Start("decode-0");
  trial.ExpectAtRest();
}

// What follows a hand-off that a router has asked for, one fault at a time on each message.
struct Fault {
  const char* name;
  ChannelFault fault;
};

TEST(DrainFaultTest, WhicheverControlMessageIsLostDoubledOrLateNothingIs) {
  for (const Fault& fault : {Fault{"drop", {.drop = true}}, Fault{"double", {.copies = 2}},
                             Fault{"late", {.delay = absl::Milliseconds(300)}}}) {
    int messages = 0;  // As many as there are without a fault.
    for (int chosen = -1; chosen < messages;
         chosen += chosen < 0 ? 1 : testing::ForTestSize(3, 1, 1)) {
      SCOPED_TRACE(::testing::Message() << fault.name << " of message " << chosen);
      Trial trial;
      trial.Submit();
      ASSERT_TRUE(trial.AllHave(5));
      int number = 0;
      trial.on_message = [&](const std::string&, const proto::Envelope& envelope) {
        if (!OfAMove(envelope)) return ChannelFault();
        return number++ == chosen ? fault.fault : ChannelFault();
      };
      trial.cluster.Drain("decode-0");
      trial.cluster.Run(absl::Milliseconds(100));
      if (chosen < 0) messages = number;
      trial.ExpectRightAnswers();
      trial.ExpectAtRest();
      EXPECT_TRUE(trial.cluster.idle("decode-0"));
    }
    EXPECT_GE(messages, 4 * kStreams / 2) << "of reserve, grant, hand-off and handed off";
  }
}

TEST(DrainFaultTest, WhateverBecomesOfTheKvOnItsWayNothingIsLost) {
  for (TransferFault::Kind kind :
       {TransferFault::kLose, TransferFault::kCorrupt, TransferFault::kFail, TransferFault::kBreak,
        TransferFault::kDuplicate, TransferFault::kHang, TransferFault::kDelayInNet}) {
    int messages = 0;  // As many as there are without a fault.
    for (int chosen = -1; chosen < messages;
         chosen += chosen < 0 ? 1 : testing::ForTestSize(3, 1, 1)) {
      SCOPED_TRACE(::testing::Message() << "fault " << kind << " of message " << chosen);
      Trial trial;
      trial.Submit();
      ASSERT_TRUE(trial.AllHave(5));
      int number = 0;
      trial.on_transfer = [&](const std::string&, const proto::TransferHeader&) {
        return number++ == chosen
                   ? TransferFault{.kind = kind, .delay = absl::Seconds(3), .byte = 12345}
                   : TransferFault();
      };
      trial.cluster.Drain("decode-0");
      trial.cluster.Run(absl::Milliseconds(100));
      if (chosen < 0) messages = number;
      trial.ExpectRightAnswers();
      trial.ExpectAtRest();
      EXPECT_TRUE(trial.cluster.idle("decode-0"));
    }
    EXPECT_GE(messages, 8) << "two handshakes, KV of two layers, a commit and its answer of each";
  }
}

// The peer, the node that drains, and the one that could compute everything again.
TEST(DrainFaultTest, WhoeverDiesAtWhicheverMessageNothingIsLost) {
  for (const std::string victim : {"decode-1", "decode-0", "prefill-0"}) {
    int messages = 0;  // As many as there are without a fault.
    for (int chosen = -1; chosen < messages;
         chosen += chosen < 0 ? 1 : testing::ForTestSize(4, 1, 1)) {
      SCOPED_TRACE(::testing::Message() << victim << " dies at message " << chosen);
      Trial trial;
      trial.Submit();
      ASSERT_TRUE(trial.AllHave(5));
      int number = 0;
      const auto strike = [&] {
        if (number++ != chosen) return;
        trial.cluster.loop().Post([&] { trial.cluster.Kill(victim); });
      };
      trial.on_message = [&](const std::string&, const proto::Envelope& envelope) {
        if (OfAMove(envelope)) strike();
        return ChannelFault();
      };
      trial.on_transfer = [&](const std::string&, const proto::TransferHeader&) {
        strike();
        return TransferFault();
      };
      trial.cluster.Drain("decode-0");
      trial.cluster.Run(absl::Milliseconds(100));
      if (chosen < 0) messages = number;
      trial.on_message = nullptr;
      trial.on_transfer = nullptr;
      for (const std::string name : {"decode-1", "decode-0", "prefill-0"}) {
        if (name == victim) trial.cluster.Run(absl::Seconds(2));
        if (!trial.cluster.alive(name)) trial.cluster.Start(name);
      }
      trial.ExpectRightAnswers();
      trial.ExpectAtRest();
    }
    EXPECT_GE(messages, 20);
  }
}

// To the nodes a router that nothing comes from any more is dead.
TEST(DrainFaultTest, ARouterThatDiesMeanwhileLeavesNothingOnTheNodes) {
  int messages = 0;  // As many as there are without a fault.
  for (int chosen = -1; chosen < messages;
       chosen += chosen < 0 ? 1 : testing::ForTestSize(4, 1, 1)) {
    SCOPED_TRACE(::testing::Message() << "at message " << chosen);
    Trial trial;
    trial.Submit(kStreams, 900);
    ASSERT_TRUE(trial.AllHave(5));
    int number = 0;
    bool dead = false;
    trial.on_message = [&](const std::string& name, const proto::Envelope& envelope) {
      if (OfAMove(envelope) && number++ == chosen) dead = true;
      return ChannelFault{.drop = dead && name == "router"};
    };
    trial.on_transfer = [&](const std::string&, const proto::TransferHeader&) {
      if (number++ == chosen) dead = true;
      return TransferFault();
    };
    trial.cluster.Drain("decode-0");
    trial.cluster.Run(absl::Milliseconds(60));
    if (chosen < 0) {
      messages = number;
      continue;
    }
    EXPECT_TRUE(trial.cluster.RunUntil(
        [&] { return trial.cluster.idle("decode-0") && trial.cluster.idle("decode-1"); },
        absl::Seconds(20)));
    for (const std::string name : {"decode-0", "decode-1"}) {
      EXPECT_EQ(trial.cluster.pool(name).free_blocks(), trial.cluster.pool(name).capacity_blocks())
          << name;
    }
  }
  EXPECT_GE(messages, 12);
}

TEST(DrainFaultTest, WithThePeerFullTheyEndWhereTheyAre) {
  // Of the three at each node each has about ten blocks now, and takes 15 in the end.
  Trial trial({.prefill = 1, .decode = 2, .kv_blocks = 40, .prefix_cache = false});
  trial.Submit(6, 180);
  ASSERT_TRUE(trial.AllHave(100));
  trial.cluster.Drain("decode-0");
  trial.ExpectRightAnswers();
  EXPECT_EQ(trial.Moves("moved"), 0);
  EXPECT_GT(trial.AllMoves(), 0) << "it was told why";
  EXPECT_EQ(trial.Retries(), 0);
  trial.ExpectAtRest();
}

TEST(DrainFaultTest, ToAPeerOfAnotherClassOrAnEarlierProtocolNothingMoves) {
  for (const bool old : {true, false}) {
    SCOPED_TRACE(old ? "an earlier protocol" : "another class");
    Trial trial;
    trial.Submit(kStreams, 900);
    ASSERT_TRUE(trial.AllHave(5));
    trial.rewrite = [&](const std::string& name, proto::Envelope& envelope) {
      if (name != "decode-1" || !envelope.has_node_status()) return;
      if (old) {
        EXPECT_TRUE(ThroughEarlierProtocol(envelope));
      } else {
        envelope.mutable_node_status()->set_numeric_class("other");
      }
    };
    trial.cluster.Run(absl::Milliseconds(200));
    int asked = 0;
    trial.on_message = [&](const std::string&, const proto::Envelope& envelope) {
      asked += envelope.has_hand_off() ? 1 : 0;
      return ChannelFault();
    };
    trial.cluster.Drain("decode-0");
    trial.ExpectRightAnswers();
    EXPECT_EQ(asked, 0);
    EXPECT_EQ(trial.Moves("moved"), 0);
    EXPECT_GT(trial.Moves("no_node"), 0);
    EXPECT_EQ(trial.Retries(), 0);
  }
}

// Of an earlier protocol is the node that drains: it is not asked for what it does not know.
TEST(DrainFaultTest, ANodeOfAnEarlierProtocolIsNotAskedToHandOver) {
  Trial trial;
  trial.rewrite = [&](const std::string& name, proto::Envelope& envelope) {
    if (name == "decode-0") {
      EXPECT_TRUE(ThroughEarlierProtocol(envelope));
    }
  };
  trial.Submit(kStreams, 900);
  ASSERT_TRUE(trial.AllHave(5));
  trial.cluster.Run(absl::Milliseconds(200));
  trial.on_message = [&](const std::string&, const proto::Envelope& envelope) {
    EXPECT_FALSE(envelope.has_hand_off());
    return ChannelFault();
  };
  trial.cluster.Drain("decode-0");
  trial.ExpectRightAnswers();
  EXPECT_EQ(trial.AllMoves(), 0);
}

TEST(DrainFaultTest, MoreThanMayMoveAtATimeMoveOneAfterTheOther) {
  Trial trial({.prefill = 1, .decode = 2, .kv_blocks = 4096, .max_batch = 64});
  trial.Submit(60, 400);
  ASSERT_TRUE(trial.AllHave(5));
  const double at_node = trial.Running("decode-0");
  EXPECT_GT(at_node, 16);
  trial.cluster.Drain("decode-0");
  ASSERT_TRUE(
      trial.cluster.RunUntil([&] { return trial.cluster.idle("decode-0"); }, absl::Seconds(5)));
  EXPECT_EQ(trial.Moves("moved"), at_node);
  trial.ExpectRightAnswers();
}

// What comes while a node drains goes to others; what is on its way there comes, and moves on.
TEST(DrainFaultTest, UnderALoadThatGoesOnEachNodeDrainsInItsTurn) {
  Trial trial({.prefill = 1, .decode = 3});
  for (int round = 0; round < 6; ++round) {
    const std::string name = absl::StrCat("decode-", round % 3);
    trial.Submit(4, 150);
    trial.cluster.Run(absl::Milliseconds(3 + 7 * round));
    trial.Submit(2, 150);
    trial.cluster.Drain(name);
    trial.Submit(2, 150);
    ASSERT_TRUE(
        trial.cluster.RunUntil([&] { return trial.cluster.idle(name); }, absl::Seconds(20)));
    trial.cluster.Kill(name);
    trial.cluster.Start(name);
    trial.cluster.Run(absl::Milliseconds(700));
  }
  trial.ExpectRightAnswers();
  EXPECT_EQ(trial.Retries(), 0);
  EXPECT_GT(trial.Moves("moved"), 6);
  trial.ExpectAtRest();
}

TEST(DrainFaultTest, ClientsThatLeaveMeanwhileFreeBothNodes) {
  for (int wait = 0; wait < 40; wait += testing::ForTestSize(5, 1, 1)) {
    SCOPED_TRACE(wait);
    Trial trial;
    trial.Submit();
    ASSERT_TRUE(trial.AllHave(5));
    trial.cluster.Drain("decode-0");
    trial.cluster.Run(absl::Milliseconds(wait));
    for (int i = 0; i < 4; ++i) {
      trial.cluster.service().Cancel(trial.streams.front()->id);
      EXPECT_FALSE(trial.streams.front()->sink.ended);
      trial.left.push_back(std::move(trial.streams.front()));
      trial.streams.erase(trial.streams.begin());
    }
    trial.cluster.Run(absl::Milliseconds(150));
    EXPECT_LE(trial.Running("decode-0") + trial.Running("decode-1"), 2);
    trial.ExpectRightAnswers();
    trial.ExpectAtRest();
  }
}

// A remapped sequence takes its KV along, and that it is not exact: nobody exact is given it.
TEST(DrainFaultTest, KvThatIsNotExactIsKnownForItAtThePeer) {
  Trial trial({.prefill = 1, .decode = 2, .lynx_policy = "lynx:alpha=3,beta=3,floor=1"});
  for (uint64_t i = 0; i < 6; ++i) trial.Submit(Prompt(i, 40), PlainSampling(150));
  ASSERT_TRUE(trial.AllHave(60));
  trial.cluster.Drain("decode-0");
  ASSERT_TRUE(
      trial.cluster.RunUntil([&] { return trial.cluster.idle("decode-0"); }, absl::Seconds(5)));
  EXPECT_GT(trial.Moves("moved"), 1);
  trial.cluster.Kill("decode-0");
  ASSERT_TRUE(trial.AllEnd());
  std::vector<std::vector<TokenId>> talks;
  for (const auto& stream : trial.streams) {
    EXPECT_TRUE(stream->sink.end.status.ok()) << stream->sink.end.status;
    ASSERT_EQ(stream->sink.tokens.size(), 150u);
    talks.push_back(stream->prompt);
    const std::vector<TokenId> ids = stream->sink.ids();
    talks.back().insert(talks.back().end(), ids.begin(), ids.end());
  }
  trial.streams.clear();
  for (auto& talk : talks) {
    proto::SamplingParams exact = PlainSampling(20);
    exact.set_policy("exact");
    trial.Submit(std::move(talk), exact);
  }
  trial.ExpectRightAnswers();
}

// Ranks of attention replicas send and take what is theirs.
TEST(DrainFaultTest, SequencesOfReplicasMoveToReplicas) {
  const SimCluster::Options options = {.prefill = 1, .decode = 2, .decode_replicas = 2};
  SimCluster cluster(options);
  LoneEngine oracle(options);
  std::vector<std::unique_ptr<RecordingSink>> sinks;
  for (uint64_t i = 0; i < 6; ++i) {
    sinks.push_back(std::make_unique<RecordingSink>());
    cluster.Submit(Prompt(i, 30 + 7 * i), PlainSampling(120), *sinks.back());
  }
  ASSERT_TRUE(cluster.RunUntil([&] {
    return std::all_of(sinks.begin(), sinks.end(), [](auto& s) { return s->tokens.size() > 4; });
  }));
  cluster.Drain("decode-0");
  ASSERT_TRUE(cluster.RunUntil([&] { return cluster.idle("decode-0"); }, absl::Seconds(5)));
  EXPECT_GT(MetricsSum(cluster.RouterMetrics(), "lynx_router_moves_total{result=\"moved\"}"), 1);
  cluster.Kill("decode-0");
  ASSERT_TRUE(cluster.RunUntil(
      [&] { return std::all_of(sinks.begin(), sinks.end(), [](auto& s) { return s->ended; }); }));
  for (uint64_t i = 0; i < 6; ++i) {
    EXPECT_EQ(sinks[i]->ids(), oracle.Answer(Prompt(i, 30 + 7 * i), PlainSampling(120))) << i;
  }
  EXPECT_EQ(MetricsSum(cluster.RouterMetrics(), "lynx_router_retries_total"), 0);
}

}  // namespace
}  // namespace lynx
