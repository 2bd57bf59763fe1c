#include <algorithm>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "services/router/placement/prefix_aware.h"
#include "tests/support/faulty_channel.h"
#include "tests/support/metrics_sum.h"
#include "tests/support/sim_cluster.h"
#include "tests/support/test_size.h"
#include "tests/support/wrapped_model_runner.h"

// Conversations on a cluster whose nodes keep prefixes: what decode holds of the turns before is
// not handed over again, and changes no token.
namespace lynx {
namespace {

using ::lynx::testing::FaultyChannel;
using ::lynx::testing::LoneEngine;
using ::lynx::testing::MetricsSum;
using ::lynx::testing::PlainSampling;
using ::lynx::testing::RecordingSink;
using ::lynx::testing::SimCluster;
using ::testing::HasSubstr;

constexpr char kTinyMoe[] = "models/lynx-tiny-moe";
constexpr char kGptOss[] = "tests/golden/variants/gpt-oss";  // Windows of 8 in two of three layers.
constexpr char kHarsh[] = "lynx:alpha=1,beta=1,floor=0";

double Tokens(SimCluster& cluster, const std::string& node, const std::string& source) {
  return MetricsSum(
      cluster.Metrics(node),
      "lynx_node_prompt_tokens_total{model_name=\"lynx-tiny-moe\",source=\"" + source);
}

double Mismatches(SimCluster& cluster, const std::string& node) {
  return MetricsSum(cluster.Metrics(node), "lynx_kv_transfer_prefix_mismatches_total");
}

void Append(std::vector<TokenId>& text, size_t tokens, std::mt19937& rng) {
  for (size_t i = 0; i < tokens; ++i) text.push_back(static_cast<TokenId>(rng() % 97));
}

// One answer, which must come.
std::vector<TokenId> Ask(SimCluster& cluster, const std::vector<TokenId>& prompt,
                         const proto::SamplingParams& sampling, const std::string& salt = "") {
  RecordingSink sink;
  const auto id =
      cluster.service().Start({.prompt = prompt, .sampling = sampling, .cache_salt = salt}, sink);
  EXPECT_TRUE(id.ok()) << id.status();
  EXPECT_TRUE(cluster.RunUntil([&] { return sink.ended; }));
  EXPECT_TRUE(sink.end.status.ok()) << sink.end.status;
  return sink.ids();
}

struct TalkOptions {
  int talks = 4;
  int turns = 4;
  int32_t answer_tokens = 40;
  bool cancels = false;
  bool shares = true;                     // Every decode node finds something to share, if it may.
  std::vector<std::string> victims = {};  // Nodes that die, and return, between turns.
};

// Several conversations at a time, of two beginnings. Every finished answer is the one of a process
// alone; returns the bytes that prefill nodes have sent.
double Talk(const SimCluster::Options& options, const TalkOptions& talk, uint32_t seed) {
  SCOPED_TRACE(::testing::Message() << options.model_dir << ", seed " << seed);
  std::mt19937 rng(seed);
  SimCluster cluster(options);
  LoneEngine alone(options);
  std::vector<std::vector<TokenId>> texts(static_cast<size_t>(talk.talks));
  for (size_t i = 0; i < texts.size(); ++i) {
    std::mt19937 beginning(static_cast<uint32_t>(i % 2));
    Append(texts[i], 50, beginning);
  }
  int failed = 0;
  for (int turn = 0; turn < talk.turns; ++turn) {
    std::vector<std::unique_ptr<RecordingSink>> sinks;
    std::vector<std::unique_ptr<RecordingSink>> leavers;
    std::vector<proto::SamplingParams> samplings;
    for (std::vector<TokenId>& text : texts) {
      Append(text, 1 + rng() % 30, rng);
      proto::SamplingParams sampling = PlainSampling(talk.answer_tokens);
      sampling.set_seed(rng());
      if (rng() % 2 == 0) sampling.set_temperature(0.8f);
      samplings.push_back(sampling);
      sinks.push_back(std::make_unique<RecordingSink>());
      cluster.Submit(text, sampling, *sinks.back());
      if (talk.cancels) {
        leavers.push_back(std::make_unique<RecordingSink>());
        const auto id = cluster.Submit(text, PlainSampling(200), *leavers.back());
        cluster.loop().RunAfter(absl::Milliseconds(rng() % 60),
                                [&cluster, id] { cluster.service().Cancel(id); });
      }
    }
    if (!talk.victims.empty()) {
      const std::string& victim = talk.victims[rng() % talk.victims.size()];
      cluster.Run(absl::Milliseconds(rng() % 40));
      cluster.Kill(victim);
      cluster.Run(absl::Seconds(8));
      cluster.Start(victim);
      cluster.Run(absl::Seconds(2));
    }
    EXPECT_TRUE(cluster.RunUntil([&] {
      return std::all_of(sinks.begin(), sinks.end(), [](const auto& sink) { return sink->ended; });
    }));
    for (size_t i = 0; i < texts.size(); ++i) {
      const std::vector<TokenId> want = alone.Answer(texts[i], samplings[i]);
      if (sinks[i]->end.status.ok()) {
        EXPECT_EQ(sinks[i]->ids(), want) << "turn " << turn << " of conversation " << i;
      } else {
        ++failed;
      }
      texts[i].insert(texts[i].end(), want.begin(), want.end());
    }
    EXPECT_TRUE(cluster.RunUntil([&] { return cluster.Idle(); }, absl::Minutes(1)));
  }
  EXPECT_LE(failed, talk.victims.empty() ? 0 : talk.talks * talk.turns / 2);
  double sent = 0;
  for (int i = 0; i < options.prefill; ++i) {
    sent += MetricsSum(cluster.Metrics("prefill-" + std::to_string(i)),
                       "lynx_kv_transfer_bytes_total{");
  }
  for (int i = 0; i < options.decode; ++i) {
    const std::string node = "decode-" + std::to_string(i);
    EXPECT_EQ(Mismatches(cluster, node), 0);
    if (talk.shares) {
      EXPECT_EQ(Tokens(cluster, node, "held") > 0, options.prefix_cache);
    }
  }
  return sent;
}

TEST(PrefixClusterTest, TurnsOfAConversationGetTheTokensOfOneProcessAlone) {
  // What is left to send. Where windows are shorter than a block, what an answer leaves of them
  // seldom reaches back to the end of a block.
  for (const auto& [model, most] : {std::pair{kTinyMoe, 0.5},
                                    {kGptOss, 0.7},
                                    {"tests/golden/variants/deepseek-v3-plain", 0.5}}) {
    const SimCluster::Options options = {
        .prefill = 2, .decode = 1, .step_rows = 48, .model_dir = model};
    SimCluster::Options without = options;
    without.prefix_cache = false;
    EXPECT_LT(Talk(options, {}, /*seed=*/7), most * Talk(without, {}, /*seed=*/7))
        << "most of a turn is in the turns before";
  }
}

// Pools in which sequences are preempted, what is kept has to make room, and clients leave.
TEST(PrefixClusterTest, TheSameWhereBlocksAreShortAndClientsLeave) {
  const uint32_t seeds = testing::ForTestSize(1u, 1u, 30u);
  for (uint32_t seed = 1; seed <= seeds; ++seed) {
    Talk({.prefill = 2, .decode = 2, .kv_blocks = 40, .step_rows = 32},
         {.talks = 6, .turns = 3, .answer_tokens = 50, .cancels = true}, seed);
    Talk({.prefill = 2, .decode = 2, .kv_blocks = 70, .step_rows = 32, .model_dir = kGptOss},
         {.talks = 6, .turns = 3, .answer_tokens = 50, .cancels = true, .shares = false}, seed);
  }
}

TEST(PrefixClusterTest, TheSameWhileNodesDieAndReturn) {
  const uint32_t seeds = testing::ForTestSize(1u, 1u, 30u);
  for (uint32_t seed = 1; seed <= seeds; ++seed) {
    Talk({.prefill = 2, .decode = 2, .kv_blocks = 100, .step_rows = 32},
         {.turns = 3,
          .shares = false,
          .victims = {"prefill-0", "prefill-1", "decode-0", "decode-1"}},
         seed);
  }
}

// A Reserve with another prompt's hashes is what a collision looks like to decode.
TEST(PrefixClusterTest, AHashThatLiesCostsTimeOnly) {
  SimCluster::Options options = {};
  google::protobuf::RepeatedField<uint64_t> hashes;
  bool lie = false;
  options.wrap_channel = [&](const std::string& name, EventLoop& loop,
                             std::unique_ptr<rpc::Channel> channel) {
    auto wrapped = std::make_unique<FaultyChannel>(std::move(channel), loop);
    if (name != "router") return wrapped;
    wrapped->set_rewrite([&](proto::Envelope& envelope) {
      if (!envelope.has_reserve()) return;
      auto& its = *envelope.mutable_reserve()->mutable_prefix_hashes();
      if (lie && !its.empty()) its = hashes;
      if (!lie) hashes = its;
    });
    return wrapped;
  };
  SimCluster cluster(options);
  LoneEngine alone(options);
  std::mt19937 rng(1);
  std::vector<TokenId> prompt;
  Append(prompt, 70, rng);
  Ask(cluster, prompt, PlainSampling(4));
  lie = true;
  prompt.clear();
  Append(prompt, 70, rng);
  const auto sampling = PlainSampling(30);
  EXPECT_EQ(Ask(cluster, prompt, sampling), alone.Answer(prompt, sampling));
  EXPECT_EQ(Mismatches(cluster, "decode-0"), 1);
  EXPECT_EQ(MetricsSum(cluster.RouterMetrics(), "lynx_router_retries_total"), 1);
  EXPECT_EQ(Tokens(cluster, "decode-0", "held"), 0);
  EXPECT_TRUE(cluster.RunUntil([&] { return cluster.Idle(); }, absl::Seconds(10)));
}

// Answers under a harsh policy, at a time, so that their rows are remapped; then each is asked
// about. What decode holds of it is KV that no exact request may see.
class LossyTalk {
 public:
  explicit LossyTalk(const SimCluster::Options& options) : cluster(options), alone_(options) {
    std::mt19937 rng(5);
    std::vector<std::unique_ptr<RecordingSink>> sinks;
    for (int i = 0; i < 4; ++i) {
      texts.emplace_back();
      Append(texts.back(), 40, rng);
      sinks.push_back(std::make_unique<RecordingSink>());
      cluster.Submit(texts.back(), PlainSampling(60), *sinks.back());
    }
    EXPECT_TRUE(cluster.RunUntil([&] {
      return std::all_of(sinks.begin(), sinks.end(), [](const auto& sink) { return sink->ended; });
    }));
    int changed = 0;
    for (size_t i = 0; i < texts.size(); ++i) {
      if (sinks[i]->ids() != alone_.Answer(texts[i], PlainSampling(60))) ++changed;
      const std::vector<TokenId> ids = sinks[i]->ids();
      texts[i].insert(texts[i].end(), ids.begin(), ids.end());
      Append(texts[i], 5, rng);
    }
    EXPECT_GT(changed, 0) << "nothing was remapped, so this shows nothing";
  }
  // How many tokens were held for the next turns.
  double AskOn(const std::string& policy, bool right = true) {
    const double before = Tokens(cluster, "decode-0", "held");
    for (const std::vector<TokenId>& text : texts) {
      proto::SamplingParams sampling = PlainSampling(30);
      const std::vector<TokenId> want = alone_.Answer(text, sampling);
      sampling.set_policy(policy);
      const std::vector<TokenId> ids = Ask(cluster, text, sampling);
      EXPECT_TRUE(!right || ids == want);
    }
    return Tokens(cluster, "decode-0", "held") - before;
  }

  SimCluster cluster;
  std::vector<std::vector<TokenId>> texts;

 private:
  LoneEngine alone_;
};

TEST(PrefixClusterTest, AnExactRequestGetsExactBlocksOnly) {
  const SimCluster::Options options = {.kv_blocks = 512, .lynx_policy = kHarsh};
  // Two blocks of each prompt are exact; the answer's are not, though they are there.
  EXPECT_EQ(LossyTalk(options).AskOn("exact"), 4 * 32);
  EXPECT_EQ(LossyTalk(options).AskOn("", /*right=*/false), 4 * 96);
}

// The policy comes with the reservation and with the commit; the commit's is what decides.
TEST(PrefixClusterTest, AnExactRequestThatWasHeldLossyBlocksStartsOver) {
  SimCluster::Options options = {.kv_blocks = 512, .lynx_policy = kHarsh};
  options.wrap_channel = [&](const std::string& name, EventLoop& loop,
                             std::unique_ptr<rpc::Channel> channel) {
    auto wrapped = std::make_unique<FaultyChannel>(std::move(channel), loop);
    if (name == "router") {
      wrapped->set_rewrite([](proto::Envelope& envelope) {
        if (envelope.has_reserve()) envelope.mutable_reserve()->clear_policy();
      });
    }
    return wrapped;
  };
  LossyTalk talk(options);
  EXPECT_EQ(talk.AskOn("exact"), 0);
  EXPECT_EQ(MetricsSum(talk.cluster.RouterMetrics(), "lynx_router_retries_total"), 4);
}

// Whoever does not know a tenant's salt cannot tell by the time an answer takes what others asked.
TEST(PrefixClusterTest, OnlyPromptsOfOneSaltShare) {
  SimCluster cluster({});
  LoneEngine alone({});
  std::mt19937 rng(3);
  std::vector<TokenId> prompt;
  Append(prompt, 70, rng);
  const std::vector<TokenId> want = alone.Answer(prompt, PlainSampling(20));
  double cached = 0;
  for (const auto& [salt, shared] : std::vector<std::pair<std::string, double>>{
           {"a", 0}, {"b", 0}, {"", 0}, {"a", 64}, {"", 64}, {"ab", 0}}) {
    EXPECT_EQ(Ask(cluster, prompt, PlainSampling(20), salt), want);
    cached += shared;
    EXPECT_EQ(Tokens(cluster, "prefill-0", "cached"), cached) << "salt " << salt;
    EXPECT_EQ(Tokens(cluster, "decode-0", "held"), cached) << "salt " << salt;
  }
}

// Reports of prefixes are lost, doubled and late, nodes come back with nothing, and routers find
// out.
TEST(PrefixClusterTest, RoutersFollowWhatNodesHoldThroughABadControlPlane) {
  SimCluster::Options options = {.routers = 2, .prefill = 2, .decode = 2};
  options.make_placement = [] { return std::make_unique<router::PrefixAware>(); };
  std::mt19937 rng(11);
  bool bad = true;
  options.wrap_channel = [&](const std::string& name, EventLoop& loop,
                             std::unique_ptr<rpc::Channel> channel) {
    auto wrapped = std::make_unique<FaultyChannel>(std::move(channel), loop);
    if (name.starts_with("router")) return wrapped;
    wrapped->set_script([&](int, const proto::Envelope& envelope) {
      testing::ChannelFault fault;
      if (!bad || !envelope.has_prefix_report()) return fault;
      fault.drop = rng() % 3 == 0;
      fault.copies = 1 + static_cast<int>(rng() % 2);
      fault.delay = absl::Milliseconds(rng() % 200);
      return fault;
    });
    wrapped->set_rewrite([&](proto::Envelope& envelope) {
      if (bad && envelope.has_prefix_report() && rng() % 20 == 0) {
        envelope.mutable_prefix_report()->add_added(rng());
      }
    });
    return wrapped;
  };
  SimCluster cluster(options);
  std::vector<TokenId> text;
  Append(text, 60, rng);
  for (int turn = 0; turn < 12; ++turn) {
    const std::vector<TokenId> answer = Ask(cluster, text, PlainSampling(20));
    text.insert(text.end(), answer.begin(), answer.end());
    Append(text, 10, rng);
    cluster.Run(absl::Seconds(1));
    if (turn == 5) {
      cluster.Kill("prefill-0");
      cluster.Run(absl::Seconds(8));
      cluster.Start("prefill-0");
      cluster.Run(absl::Seconds(2));
    }
  }
  bad = false;
  cluster.Run(absl::Seconds(3));
  const auto reports = [&](size_t router, const std::string& result) {
    return MetricsSum(cluster.RouterMetrics(router),
                      "lynx_router_prefix_reports_total{result=\"" + result + "\"}");
  };
  double held = 0;
  for (const char* node : {"prefill-0", "prefill-1", "decode-0", "decode-1"}) {
    held +=
        MetricsSum(cluster.Metrics(node), "lynx_kv_cached_blocks");  // One group: a block a prefix.
  }
  EXPECT_GT(held, 0);
  for (const size_t router : {0, 1}) {
    EXPECT_EQ(MetricsSum(cluster.RouterMetrics(router), "lynx_router_indexed_prefixes"), held);
    EXPECT_GT(reports(router, "drift"), 0);
    EXPECT_GT(reports(router, "stale"), 0);
    EXPECT_EQ(reports(router, "malformed"), 0);
  }
}

// The node that has the conversation so far goes on with it.
TEST(PrefixClusterTest, AConversationStaysWhereItsPrefixIs) {
  SimCluster::Options options = {.prefill = 3, .decode = 3};
  options.make_placement = [] { return std::make_unique<router::PrefixAware>(); };
  SimCluster cluster(options);
  std::mt19937 rng(12);
  std::vector<std::vector<TokenId>> texts(3);
  for (auto& text : texts) Append(text, 40, rng);
  double prompts = 0;
  for (int turn = 0; turn < 4; ++turn) {
    for (auto& text : texts) {
      prompts += static_cast<double>(text.size());
      const std::vector<TokenId> answer = Ask(cluster, text, PlainSampling(30));
      text.insert(text.end(), answer.begin(), answer.end());
      Append(text, 10, rng);
      cluster.Run(absl::Seconds(1));
    }
  }
  double cached = 0;
  double held = 0;
  for (const char* number : {"0", "1", "2"}) {
    cached += Tokens(cluster, std::string("prefill-") + number, "cached");
    held += Tokens(cluster, std::string("decode-") + number, "held");
  }
  // All but the first turns, what is new in the others, and parts of blocks.
  EXPECT_GT(cached, 0.4 * prompts);
  EXPECT_GT(held, 0.6 * prompts);
}

class OtherClassRunner final : public testing::WrappedModelRunner {
 public:
  using WrappedModelRunner::WrappedModelRunner;
  absl::Status Step(std::span<const model::SequenceRows> batch,
                    model::StepObserver* observer) override {
    return model_->Step(batch, observer);
  }
  const std::string& numeric_class() const override { return class_; }

 private:
  const std::string class_ = "another";
};

// KV of another class has other bits: a prompt of which part is held, and the rest comes of another
// class, would have been computed so by no node.
TEST(PrefixClusterTest, PromptsOfAnotherNumericClassAreNotSharedByExactRequests) {
  SimCluster::Options options = {.prefill = 2};
  options.wrap_runner =
      [](const std::string& name,
         std::unique_ptr<model::ModelRunner> model) -> std::unique_ptr<model::ModelRunner> {
    if (name != "prefill-1") return model;
    return std::make_unique<OtherClassRunner>(std::move(model));
  };
  SimCluster cluster(options);
  LoneEngine alone(options);
  std::mt19937 rng(2);
  std::vector<TokenId> prompt;
  Append(prompt, 70, rng);
  const std::vector<TokenId> want = alone.Answer(prompt, PlainSampling(9));
  EXPECT_EQ(Ask(cluster, prompt, PlainSampling(9)), want);
  cluster.Kill("prefill-0");
  cluster.Run(absl::Seconds(10));
  EXPECT_EQ(Ask(cluster, prompt, PlainSampling(9)), want);
  EXPECT_EQ(MetricsSum(cluster.RouterMetrics(), "lynx_router_retries_total"), 0) << "not offered";
  EXPECT_EQ(Tokens(cluster, "decode-0", "held"), 0);
  prompt[0] ^= 1;  // Of this one decode has only what prefill-1 computed.
  EXPECT_EQ(Ask(cluster, prompt, PlainSampling(9)), alone.Answer(prompt, PlainSampling(9)));
  EXPECT_EQ(Ask(cluster, prompt, PlainSampling(9)), alone.Answer(prompt, PlainSampling(9)));
  EXPECT_EQ(MetricsSum(cluster.RouterMetrics(), "lynx_router_retries_total"), 0);
  EXPECT_EQ(Tokens(cluster, "decode-0", "held"), 0);
}

// What is preempted comes back without that: computed again here, its prompt would have other bits.
// Steps that take no time make computing again the cheaper way for all others.
TEST(PrefixClusterTest, WhatAnotherNumericClassComputedIsCopiedWhenItIsPreempted) {
  struct Case {
    bool foreign;
    int64_t swap_blocks;  // Of 1 there is no place for any of them.
    bool copied;
  };
  for (const Case& c : {Case{false, 100, false}, {true, 100, true}, {true, 1, false}}) {
    SCOPED_TRACE(::testing::Message() << c.foreign << " " << c.swap_blocks);
    SimCluster::Options options = {.kv_blocks = 12, .step_rows = 32, .swap_blocks = c.swap_blocks};
    options.step_time = [](const model::StepStats&) { return absl::ZeroDuration(); };
    if (c.foreign) {
      options.wrap_runner =
          [](const std::string& name,
             std::unique_ptr<model::ModelRunner> model) -> std::unique_ptr<model::ModelRunner> {
        if (name != "prefill-0") return model;
        return std::make_unique<OtherClassRunner>(std::move(model));
      };
    }
    SimCluster cluster(options);
    LoneEngine alone(options);
    std::mt19937 rng(3);
    std::vector<std::vector<TokenId>> prompts(4);
    std::vector<std::unique_ptr<RecordingSink>> sinks;
    for (std::vector<TokenId>& prompt : prompts) {
      Append(prompt, 30, rng);
      sinks.push_back(std::make_unique<RecordingSink>());
      cluster.Submit(prompt, PlainSampling(60), *sinks.back());
    }
    EXPECT_TRUE(cluster.RunUntil([&] {
      return std::all_of(sinks.begin(), sinks.end(), [](const auto& sink) { return sink->ended; });
    }));
    for (size_t i = 0; i < prompts.size(); ++i) {
      EXPECT_EQ(sinks[i]->ids(), alone.Answer(prompts[i], PlainSampling(60)));
    }
    const std::string metrics = cluster.Metrics("decode-0");
    EXPECT_GT(MetricsSum(metrics, "lynx_node_preemptions_total{"), 0);
    EXPECT_EQ(MetricsSum(metrics, "lynx_node_swapped_out_bytes_total") > 0, c.copied);
    EXPECT_TRUE(cluster.RunUntil([&] { return cluster.Idle(); }, absl::Seconds(10)));
  }
}

}  // namespace
}  // namespace lynx
