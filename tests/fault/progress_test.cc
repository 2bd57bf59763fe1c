#include <algorithm>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/fake_model_runner.h"
#include "tests/support/faulty_channel.h"
#include "tests/support/faulty_transfer_engine.h"
#include "tests/support/metrics_sum.h"
#include "tests/support/sim_cluster.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_size.h"

// Loads under which serving systems were seen to lock up, to starve somebody or to lose memory:
// here work goes on, whoever cannot be served hears so, and everything returns to rest.
namespace lynx {
namespace {

using ::lynx::testing::ChannelFault;
using ::lynx::testing::FakeModelRunner;
using ::lynx::testing::FaultyChannel;
using ::lynx::testing::FaultyTransferEngine;
using ::lynx::testing::IsOk;
using ::lynx::testing::MetricsSum;
using ::lynx::testing::PlainSampling;
using ::lynx::testing::RecordingSink;
using ::lynx::testing::SimCluster;
using ::lynx::testing::StatusIs;
using ::lynx::testing::TransferFault;

std::vector<TokenId> Prompt(uint64_t seed, size_t length) {
  std::mt19937_64 rng(seed);
  std::vector<TokenId> prompt;
  for (size_t i = 0; i < length; ++i) prompt.push_back(static_cast<TokenId>(rng() % 97));
  return prompt;
}

// `model` is what the nodes run; its blocks and rows are the cluster's.
SimCluster::Options WithModel(SimCluster::Options options, FakeModelRunner::Options model = {}) {
  model.kv_blocks = options.kv_blocks;
  model.max_step_rows = model.max_step_logits = options.step_rows;
  options.make_runner = [model] { return std::make_unique<FakeModelRunner>(model); };
  options.session.queue_timeout = absl::Hours(1);
  return options;
}

// A client that has asked for something.
struct Client {
  Client(SimCluster& cluster, std::vector<TokenId> its_prompt, int32_t its_tokens)
      : prompt(std::move(its_prompt)), tokens(its_tokens) {
    auto started = cluster.service().Start(
        {.prompt = prompt, .sampling = PlainSampling(tokens), .deadline = deadline}, sink);
    if (started.ok()) {
      id = *started;
    } else {
      refused = started.status();
    }
  }
  bool over() const { return left || !refused.ok() || sink.ended; }
  // How it ended.
  absl::Status status() const { return refused.ok() ? sink.end.status : refused; }
  void Leave(SimCluster& cluster) {
    cluster.service().Cancel(id);
    left = true;
  }

  const std::vector<TokenId> prompt;
  const int32_t tokens;
  const absl::Time deadline = absl::InfiniteFuture();
  RecordingSink sink;
  router::SequenceId id = 0;
  absl::Status refused;
  bool left = false;
};
using Clients = std::vector<std::unique_ptr<Client>>;

bool AllOver(const Clients& clients) {
  return std::all_of(clients.begin(), clients.end(), [](auto& client) { return client->over(); });
}

void ExpectAtRest(SimCluster& cluster, absl::Duration within = absl::Seconds(10)) {
  EXPECT_TRUE(cluster.RunUntil([&] { return cluster.Idle(); }, within));
}

// SCH-1: requests that can never fit, within the model's context though.
TEST(ProgressTest, WhatCanNeverFitIsRefusedAtOnceAndHoldsUpNobody) {
  SimCluster cluster(WithModel({.kv_blocks = 64}, {.max_positions = 4096}));
  Client too_long(cluster, Prompt(1, 1100), 20);
  Client outgrows(cluster, Prompt(2, 1000), 200);
  EXPECT_THAT(too_long.refused, StatusIs(absl::StatusCode::kOutOfRange));
  EXPECT_THAT(outgrows.refused, StatusIs(absl::StatusCode::kOutOfRange));
  Clients clients;
  for (uint64_t i = 0; i < 10; ++i) {
    clients.push_back(std::make_unique<Client>(cluster, Prompt(i, 10), 10));
  }
  EXPECT_TRUE(cluster.RunUntil([&] { return AllOver(clients); }, absl::Seconds(5)));
  for (auto& client : clients) EXPECT_THAT(client->status(), IsOk());
  ExpectAtRest(cluster);
}

// The kind: sizes on both sides of every bound, many at a time. What is taken in is finished.
TEST(ProgressTest, WhatIsTakenInIsFinishedWhateverItsSize) {
  const int seeds = testing::ForTestSize(5, 40, 1000);
  for (int seed = 1; seed <= seeds; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    std::mt19937_64 rng(static_cast<uint64_t>(seed));
    const auto blocks = static_cast<int32_t>(2 + rng() % 12);
    FakeModelRunner::Options model = {.max_positions = 4096, .chained = true};
    if (rng() % 3 == 0) {  // Windows: blocks return while a sequence lives.
      model.reaches = {{.window = 24}, {}, {.window = 24}};
    }
    SimCluster cluster(WithModel({.kv_blocks = blocks,
                                  .step_rows = static_cast<int32_t>(16 + rng() % 40),
                                  .max_batch = static_cast<int32_t>(1 + rng() % 8)},
                                 model));
    Clients clients;
    for (int i = 0; i < 30; ++i) {
      const auto total = static_cast<int64_t>(2 + rng() % static_cast<uint64_t>(blocks * 16 + 20));
      const auto tokens = static_cast<int32_t>(1 + rng() % static_cast<uint64_t>(total - 1));
      clients.push_back(std::make_unique<Client>(
          cluster, Prompt(rng(), static_cast<size_t>(total - tokens)), tokens));
      if (model.reaches.empty()) {
        EXPECT_EQ(clients.back()->refused.ok(), total <= blocks * 16) << total << " tokens";
      }
      if (rng() % 4 == 0) cluster.Run(absl::Milliseconds(rng() % 50));
    }
    EXPECT_TRUE(cluster.RunUntil([&] { return AllOver(clients); }, absl::Minutes(10)));
    for (auto& client : clients) {
      if (!client->refused.ok()) continue;
      EXPECT_THAT(client->status(), IsOk());
      EXPECT_EQ(client->sink.ids(),
                FakeModelRunner::GreedyAnswer({.layers = model.layers, .chained = true},
                                              client->prompt, client->tokens));
    }
    ExpectAtRest(cluster);
  }
}

// Three that cannot all stay, so some are preempted, and clients that leave meanwhile.
void ExpectEqualWhenTight(const std::vector<std::vector<TokenId>>& want, int64_t swap_blocks) {
  SimCluster tight(WithModel({.kv_blocks = 9, .swap_blocks = swap_blocks}));
  std::mt19937_64 rng(20261130);
  const int rounds = testing::ForTestSize(30, 200, 2000);
  for (int round = 0; round < rounds; ++round) {
    SCOPED_TRACE(::testing::Message() << "round " << round);
    Clients clients;
    for (uint64_t i = 0; i < 3; ++i) {
      clients.push_back(std::make_unique<Client>(tight, Prompt(i, 40), 48));
    }
    const size_t leaves = rng() % 4;  // The last: nobody.
    tight.Run(absl::Milliseconds(rng() % 120));
    if (leaves < clients.size() && !clients[leaves]->over()) clients[leaves]->Leave(tight);
    ASSERT_TRUE(tight.RunUntil([&] { return AllOver(clients); }));
    for (size_t i = 0; i < clients.size(); ++i) {
      if (clients[i]->left) continue;
      ASSERT_THAT(clients[i]->status(), IsOk());
      ASSERT_EQ(clients[i]->sink.ids(), want[i]) << "request " << i;
    }
    ExpectAtRest(tight);
  }
  EXPECT_GT(MetricsSum(tight.Metrics("decode-0"), "lynx_node_preemptions_total"), rounds / 2);
}

// From every moment of a request: its last word comes when the blocks of both sides are back.
TEST(ProgressTest, ReleasesAreMeasuredToTheLastBlockOnEitherSide) {
  SimCluster::Options options = WithModel({.kv_blocks = 64, .step_rows = 32});
  options.step_time = [](const model::StepStats&) { return absl::Milliseconds(30); };
  SimCluster cluster(options);
  const auto released = [&] {
    return MetricsSum(cluster.RouterMetrics(), "lynx_router_release_duration_seconds_count");
  };
  for (int round = 0; round < 40; ++round) {
    SCOPED_TRACE(::testing::Message() << "leaves after " << 10 * round + 5 << " ms");
    Client client(cluster, Prompt(static_cast<uint64_t>(round), 100), 100);
    cluster.Run(absl::Milliseconds(10 * round + 5));
    client.Leave(cluster);
    ASSERT_TRUE(cluster.RunUntil([&] { return released() == round + 1; }, absl::Seconds(1)));
    for (const char* node : {"prefill-0", "decode-0"}) {
      EXPECT_EQ(cluster.pool(node).free_blocks(), 64) << node;
    }
  }
  EXPECT_GT(MetricsSum(cluster.RouterMetrics(),
                       "lynx_router_release_duration_seconds_bucket{le=\"0.025\"}"),
            0);
  EXPECT_LE(MetricsSum(cluster.RouterMetrics(), "lynx_router_release_duration_seconds_sum"),
            40 * 0.03)
      << "a step at most";
}

// SCH-3: two that cannot both stay, so one is preempted, and clients that leave meanwhile.
TEST(ProgressTest, PreemptionAmongAbortsChangesNoTokenAndLosesNoBlock) {
  std::vector<std::vector<TokenId>> want;
  SimCluster roomy(WithModel({.kv_blocks = 64}));
  for (uint64_t i = 0; i < 3; ++i) {
    Client client(roomy, Prompt(i, 40), 48);
    ASSERT_TRUE(roomy.RunUntil([&] { return client.over(); }));
    want.push_back(client.sink.ids());
  }
  for (const int64_t swap_blocks : {0, 6}) {
    SCOPED_TRACE(::testing::Message() << swap_blocks << " blocks of copies");
    ExpectEqualWhenTight(want, swap_blocks);
  }
}

// SCH-4: four long prompts on one prefill node, then a short one each second. A chunk takes 0.3 s.
TEST(ProgressTest, ShortPromptsDoNotWaitForLongOnes) {
  SimCluster::Options options = WithModel({.kv_blocks = 3300, .step_rows = 512}, {.chained = true});
  options.step_time = [](const model::StepStats& stats) {
    return stats.decode_rows > 0 ? absl::Milliseconds(5)
                                 : absl::Milliseconds(300) * stats.prefill_rows / 512;
  };
  SimCluster cluster(options);
  Clients longs;
  for (uint64_t i = 0; i < 4; ++i) {
    longs.push_back(std::make_unique<Client>(cluster, Prompt(i, 12000), 4));
  }
  cluster.Run(absl::Milliseconds(100));
  for (uint64_t second = 0; second < 30; ++second) {
    Client client(cluster, Prompt(second, 20), 4);
    EXPECT_TRUE(
        cluster.RunUntil([&] { return !client.sink.tokens.empty(); }, absl::Milliseconds(650)))
        << "the chunk that runs, and the next one; second " << second;
    EXPECT_TRUE(cluster.RunUntil([&] { return client.over(); }, absl::Seconds(1)));
    cluster.Run(absl::Milliseconds(300));
  }
  EXPECT_TRUE(cluster.RunUntil([&] { return AllOver(longs); }, absl::Seconds(20)));
  for (auto& client : longs) {
    EXPECT_THAT(client->status(), IsOk());
    EXPECT_EQ(client->sink.ids(),
              FakeModelRunner::GreedyAnswer({.chained = true}, client->prompt, client->tokens));
  }
  ExpectAtRest(cluster);
}

// The other way round: short prompts that alone would fill every step do not starve a long one.
TEST(ProgressTest, ALongPromptEndsAmongManyShortOnes) {
  SimCluster::Options options = WithModel({.kv_blocks = 400, .step_rows = 64}, {.chained = true});
  options.step_time = [](const model::StepStats&) { return absl::Milliseconds(10); };
  SimCluster cluster(options);
  Clients shorts;
  std::unique_ptr<Client> one;
  for (uint64_t i = 0; i < 400; ++i) {  // One arrives for each step.
    shorts.push_back(std::make_unique<Client>(cluster, Prompt(i, 60), 2));
    if (i == 20) one = std::make_unique<Client>(cluster, Prompt(i, 3000), 2);
    cluster.Run(absl::Milliseconds(10));
  }
  EXPECT_TRUE(one->over()) << "a fourth of 64 rows a step: 3000 tokens take 188 steps";
  EXPECT_TRUE(cluster.RunUntil([&] { return AllOver(shorts); }));
  for (auto& client : shorts) EXPECT_THAT(client->status(), IsOk());
  ExpectAtRest(cluster);
}

// SCH-6: a decode node whose step hangs for 15 s while requests keep coming.
TEST(ProgressTest, AStuckDecodeNodeStopsAdmissionAndGoesOnWhereItWas) {
  bool stuck = false;
  SimCluster::Options options = WithModel({.kv_blocks = 64, .max_batch = 8}, {.chained = true});
  options.session.queue_timeout = absl::Seconds(3);
  options.admission = {.max_in_flight = 64, .max_queued = 16};
  options.step_time = [&](const model::StepStats& stats) {
    const bool hangs = stats.decode_rows > 0 && std::exchange(stuck, false);
    return hangs ? absl::Seconds(15) : absl::Milliseconds(1);
  };
  SimCluster cluster(options);
  Clients clients;
  const auto twenty_a_second = [&](absl::Duration time) {
    for (absl::Duration t = absl::ZeroDuration(); t < time; t += absl::Milliseconds(50)) {
      const uint64_t seed = clients.size();
      clients.push_back(std::make_unique<Client>(cluster, Prompt(seed, 20 + seed % 60), 20));
      cluster.Run(absl::Milliseconds(50));
      EXPECT_GT(cluster.pool("prefill-0").free_blocks(), 0);
    }
  };
  twenty_a_second(absl::Seconds(2));
  stuck = true;
  const size_t before = clients.size();
  twenty_a_second(absl::Seconds(15));
  const auto refused = [](const auto& client) {
    return absl::IsResourceExhausted(client->status());
  };
  EXPECT_GT(std::count_if(clients.begin(), clients.end(), refused), 100);
  EXPECT_TRUE(std::none_of(clients.begin(), clients.begin() + static_cast<long>(before), refused));
  twenty_a_second(absl::Seconds(1));
  const size_t after = clients.size();
  twenty_a_second(absl::Seconds(5));
  EXPECT_TRUE(cluster.RunUntil([&] { return AllOver(clients); }));
  for (size_t i = 0; i < clients.size(); ++i) {
    const Client& client = *clients[i];
    if (client.status().ok()) {
      EXPECT_EQ(client.sink.ids(),
                FakeModelRunner::GreedyAnswer({.chained = true}, client.prompt, client.tokens));
    } else {
      EXPECT_THAT(client.status(), StatusIs(absl::StatusCode::kResourceExhausted));
      EXPECT_LT(i, after) << "throughput does not return";
    }
  }
  ExpectAtRest(cluster);
}

// SCH-6: two run at a time, two hundred long prompts come at once.
TEST(ProgressTest, ASlowDecodeNodeServesAllPromptsInTheEnd) {
  SimCluster::Options options =
      WithModel({.kv_blocks = 400, .step_rows = 512, .max_batch = 2}, {.chained = true});
  SimCluster cluster(options);
  Clients clients;
  for (uint64_t i = 0; i < 200; ++i) {
    clients.push_back(std::make_unique<Client>(cluster, Prompt(i, 2000), 20));
  }
  EXPECT_TRUE(cluster.RunUntil([&] { return AllOver(clients); }, absl::Minutes(10)));
  for (auto& client : clients) EXPECT_THAT(client->status(), IsOk());
  ExpectAtRest(cluster);
}

// What prefill keeps for hand-offs that do not end is in sight, and returns.
TEST(ProgressTest, BlocksPinnedByHandoffsAreShownAndReturn) {
  bool slow = true;
  SimCluster::Options options = WithModel({.kv_blocks = 32}, {.chained = true});
  options.wrap_transfer = [&](const std::string& name, EventLoop& loop,
                              std::unique_ptr<transfer::TransferEngine> engine)
      -> std::unique_ptr<transfer::TransferEngine> {
    if (!name.starts_with("prefill")) return engine;
    auto faulty = std::make_unique<FaultyTransferEngine>(std::move(engine), loop);
    faulty->set_script([&](int, const proto::TransferHeader& header) -> TransferFault {
      if (!slow || header.has_handshake()) return {};
      return {.kind = TransferFault::kDelay, .delay = absl::Seconds(5)};
    });
    return faulty;
  };
  SimCluster cluster(options);
  Client client(cluster, Prompt(1, 100), 4);
  cluster.Run(absl::Seconds(1));
  const std::string pinned = "lynx_kv_blocks{state=\"reserved\"}";
  EXPECT_EQ(MetricsSum(cluster.Metrics("prefill-0"), pinned), 7);
  slow = false;
  EXPECT_TRUE(cluster.RunUntil([&] { return client.over(); }));
  EXPECT_THAT(client.status(), IsOk());
  ExpectAtRest(cluster);
  EXPECT_EQ(MetricsSum(cluster.Metrics("prefill-0"), pinned), 0);
}

// KV-2: clients leave while decode waits for KV whose end is never reported, and the word that they
// left may be lost too.
TEST(ProgressTest, ATransferWhoseEndIsNeverToldCostsNoBlockForGood) {
  std::mt19937_64 rng(4711);
  SimCluster::Options options = WithModel({.kv_blocks = 16}, {.chained = true});
  bool faults = true;
  options.wrap_transfer = [&](const std::string&, EventLoop& loop,
                              std::unique_ptr<transfer::TransferEngine> engine)
      -> std::unique_ptr<transfer::TransferEngine> {
    auto faulty = std::make_unique<FaultyTransferEngine>(std::move(engine), loop);
    faulty->set_script([&](int, const proto::TransferHeader& header) -> TransferFault {
      if (!faults || header.has_handshake() || header.has_handshake_reply() || rng() % 4 != 0)
        return {};
      constexpr TransferFault::Kind kKinds[] = {TransferFault::kLose, TransferFault::kFail,
                                                TransferFault::kHang, TransferFault::kDelayInNet};
      return {.kind = kKinds[rng() % 4], .delay = absl::Milliseconds(rng() % 5000)};
    });
    return faulty;
  };
  options.wrap_channel = [&](const std::string&, EventLoop& loop,
                             std::unique_ptr<rpc::Channel> channel) {
    auto faulty = std::make_unique<FaultyChannel>(std::move(channel), loop);
    faulty->set_script([&](int, const proto::Envelope& envelope) {
      const bool ends = envelope.has_cancel() || envelope.has_terminal();
      return ChannelFault{.drop = faults && ends && rng() % 4 == 0};
    });
    return faulty;
  };
  options.session.first_token_timeout = absl::Seconds(20);
  SimCluster cluster(options);
  const int rounds = testing::ForTestSize(50, 500, 5000);
  for (int round = 0; round < rounds; ++round) {
    SCOPED_TRACE(::testing::Message() << "round " << round);
    faults = true;
    Client client(cluster, Prompt(rng(), 70), 8);
    cluster.Run(absl::Milliseconds(rng() % 40));
    if (rng() % 8 == 0) {
      cluster.Kill("prefill-0");
      cluster.Run(absl::Milliseconds(rng() % 3000));
      cluster.Start("prefill-0");
    }
    if (!client.over()) client.Leave(cluster);
    ASSERT_TRUE(cluster.RunUntil([&] { return cluster.Idle(); }, absl::Minutes(2)));
    if (round % 25 != 0) continue;
    faults = false;
    ASSERT_TRUE(cluster.RunUntil([&] { return cluster.service().View().ready; }));
    Client next(cluster, Prompt(rng(), 70), 8);
    ASSERT_TRUE(cluster.RunUntil([&] { return next.over(); }));
    ASSERT_THAT(next.status(), IsOk());
    ASSERT_TRUE(cluster.RunUntil([&] { return cluster.Idle(); }, absl::Minutes(1)));
  }
}

void ExpectGaugesAtZero(SimCluster& cluster) {
  for (const char* node : {"prefill-0", "decode-0"}) {
    const std::string page = cluster.Metrics(node);
    for (const char* name :
         {"lynx_node_running_requests", "lynx_node_waiting_requests", "lynx_kv_usage_ratio"}) {
      EXPECT_EQ(MetricsSum(page, name), 0) << node << " " << name;
    }
  }
  EXPECT_EQ(MetricsSum(cluster.RouterMetrics(), "lynx_router_inflight_sequences"), 0);
  EXPECT_EQ(MetricsSum(cluster.RouterMetrics(), "lynx_router_queued_requests"), 0);
}

// MET-3: all leave at once, and no step comes after it. Whether their clients left or their router
// is dead, the gauges are at rest within a reporting interval, and the nodes are used again.
TEST(ProgressTest, GaugesReturnToZeroWhenAllLeaveAtOnce) {
  for (const bool router_dies : {false, true}) {
    SCOPED_TRACE(router_dies ? "router dies" : "clients leave");
    bool silent = false;
    SimCluster::Options options = WithModel({.kv_blocks = 512, .max_batch = 64}, {.chained = true});
    options.wrap_channel = [&](const std::string& name, EventLoop& loop,
                               std::unique_ptr<rpc::Channel> channel) {
      auto faulty = std::make_unique<FaultyChannel>(std::move(channel), loop);
      if (name == "router") {
        faulty->set_script([&](int, const proto::Envelope&) { return ChannelFault{silent}; });
      }
      return faulty;
    };
    SimCluster cluster(options);
    Clients clients;
    for (uint64_t i = 0; i < 200; ++i) {
      clients.push_back(std::make_unique<Client>(cluster, Prompt(i, 30 + i % 50), 2000));
    }
    cluster.Run(absl::Milliseconds(100));
    EXPECT_GT(MetricsSum(cluster.Metrics("decode-0"), "lynx_node_running_requests"), 20);
    silent = router_dies;
    for (size_t i = 0; i < clients.size(); ++i) {
      clients[i]->Leave(cluster);
      if (i % 4 == 0) cluster.Run(absl::Milliseconds(1));
    }
    if (router_dies) {
      cluster.Run(absl::Seconds(13));  // Nodes miss it for ten.
    }
    cluster.Run(absl::Milliseconds(500));
    ExpectGaugesAtZero(cluster);
    cluster.Run(absl::Seconds(60));
    ExpectGaugesAtZero(cluster);
    silent = false;
    EXPECT_TRUE(cluster.RunUntil([&] { return cluster.service().View().ready; }));
    Clients more;
    for (uint64_t i = 0; i < 10; ++i) {
      more.push_back(std::make_unique<Client>(cluster, Prompt(i, 30), 10));
    }
    EXPECT_TRUE(cluster.RunUntil([&] { return AllOver(more); }, absl::Seconds(5)));
    for (auto& client : more) EXPECT_THAT(client->status(), IsOk());
    ExpectAtRest(cluster);
  }
}

}  // namespace
}  // namespace lynx
