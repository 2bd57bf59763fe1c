// Nodes with attention replicas: each sequence lives on one of them, wherever its KV comes from,
// and its tokens are those of a process alone.
#include <algorithm>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/metrics_sum.h"
#include "tests/support/sim_cluster.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_size.h"

namespace lynx::testing {
namespace {

using ::testing::AllOf;
using ::testing::Gt;
using ::testing::HasSubstr;

std::vector<TokenId> Prompt(size_t tokens, uint32_t seed) {
  std::mt19937 rng(seed);
  std::vector<TokenId> prompt(tokens);
  for (TokenId& token : prompt) token = static_cast<TokenId>(rng() % 97);
  return prompt;
}

double Rows(const SimCluster& cluster, const std::string& node, int replica) {
  return MetricsSum(cluster.Metrics(node),
                    absl::StrCat("lynx_node_replica_rows_total{replica=\"", replica, "\"}"));
}

double Held(const SimCluster& cluster, const std::string& node, const std::string& source) {
  return MetricsSum(
      cluster.Metrics(node),
      "lynx_node_prompt_tokens_total{model_name=\"lynx-tiny-moe\",source=\"" + source);
}

// Sequences that share the cluster; all finish, with the tokens of a process alone.
void ServeSome(SimCluster& cluster, const SimCluster::Options& options, int count,
               int32_t answer_tokens) {
  LoneEngine alone(options);
  std::vector<std::unique_ptr<RecordingSink>> sinks;
  std::vector<std::vector<TokenId>> prompts;
  for (int i = 0; i < count; ++i) {
    prompts.push_back(Prompt(20 + 13 * static_cast<size_t>(i), static_cast<uint32_t>(i)));
    sinks.push_back(std::make_unique<RecordingSink>());
    cluster.Submit(prompts.back(), PlainSampling(answer_tokens), *sinks.back());
  }
  ASSERT_TRUE(cluster.RunUntil(
      [&] { return std::ranges::all_of(sinks, [](const auto& sink) { return sink->ended; }); }));
  for (size_t i = 0; i < sinks.size(); ++i) {
    SCOPED_TRACE(absl::StrCat("sequence ", i));
    EXPECT_THAT(sinks[i]->end.status, IsOk());
    EXPECT_EQ(sinks[i]->ids(), alone.Answer(prompts[i], PlainSampling(answer_tokens)));
  }
  EXPECT_TRUE(cluster.RunUntil([&] { return cluster.Idle(); }));
}

TEST(ReplicaClusterTest, HandOffsBetweenReplicasChangeNoToken) {
  for (const auto& [prefill, decode] : {std::pair(1, 2), {2, 1}, {2, 2}, {3, 2}}) {
    SCOPED_TRACE(absl::StrCat(prefill, " to ", decode, " replicas"));
    const SimCluster::Options options = {.prefill_replicas = prefill, .decode_replicas = decode};
    SimCluster cluster(options);
    ServeSome(cluster, options, 6, 20);
    for (int i = 0; i < prefill; ++i) EXPECT_GT(Rows(cluster, "prefill-0", i), 0) << i;
    for (int i = 0; i < decode; ++i) EXPECT_GT(Rows(cluster, "decode-0", i), 0) << i;
  }
}

TEST(ReplicaClusterTest, PromptsComputedByADecodeNodeStayOnTheirReplica) {
  const SimCluster::Options options = {.prefill = 0, .decode_replicas = 2, .prompt_rows = 32};
  SimCluster cluster(options);
  ServeSome(cluster, options, 6, 20);
  for (int i = 0; i < 2; ++i) EXPECT_GT(Rows(cluster, "decode-0", i), 60) << i;
}

// Each replica's pool is too small for its sequences: some lose their blocks, and come back from a
// copy that the replica's rank keeps, or are computed again.
TEST(ReplicaClusterTest, PreemptedSequencesComeBackOnTheirReplica) {
  for (const int64_t swap_blocks : {int64_t{0}, int64_t{64}}) {
    SCOPED_TRACE(absl::StrCat(swap_blocks, " blocks of copies"));
    const SimCluster::Options options = {
        .decode_replicas = 2, .kv_blocks = 14, .prefix_cache = false, .swap_blocks = swap_blocks};
    SimCluster cluster(options);
    ServeSome(cluster, options, 6, 90);
    EXPECT_GT(MetricsSum(cluster.Metrics("decode-0"), "lynx_node_preemptions_total"), 0);
    const double copied =
        MetricsSum(cluster.Metrics("decode-0"), "lynx_node_swapped_out_bytes_total");
    EXPECT_EQ(copied > 0, swap_blocks > 0);
  }
}

TEST(ReplicaClusterTest, ATurnGoesWhereTheTurnsBeforeItAre) {
  const SimCluster::Options options = {.decode_replicas = 2};
  SimCluster cluster(options);
  LoneEngine alone(options);
  std::vector<std::vector<TokenId>> talks = {Prompt(70, 1), Prompt(75, 2)};
  for (int turn = 0; turn < 3; ++turn) {
    std::vector<std::unique_ptr<RecordingSink>> sinks;
    for (const auto& talk : talks) {
      sinks.push_back(std::make_unique<RecordingSink>());
      cluster.Submit(talk, PlainSampling(24), *sinks.back());
    }
    ASSERT_TRUE(cluster.RunUntil(
        [&] { return std::ranges::all_of(sinks, [](const auto& sink) { return sink->ended; }); }));
    for (size_t i = 0; i < talks.size(); ++i) {
      EXPECT_EQ(sinks[i]->ids(), alone.Answer(talks[i], PlainSampling(24)));
      const auto ids = sinks[i]->ids();
      talks[i].insert(talks[i].end(), ids.begin(), ids.end());
      const auto more = Prompt(9, static_cast<uint32_t>(100 + turn));
      talks[i].insert(talks[i].end(), more.begin(), more.end());
    }
  }
  // Both were on a replica of their own, and all turns but the first found what it held.
  for (int i = 0; i < 2; ++i) EXPECT_GT(Rows(cluster, "decode-0", i), 60) << i;
  EXPECT_THAT(Held(cluster, "decode-0", "held"), Gt(2 * (80 + 112)));
}

// The node has as many blocks, a replica has not.
TEST(ReplicaClusterTest, WhatNoReplicaCanHoldIsRefusedBeforeAnyWork) {
  const SimCluster::Options options = {.decode_replicas = 2, .kv_blocks = 12};
  SimCluster cluster(options);
  RecordingSink sink;
  const auto refused =
      cluster.service().Start({.prompt = Prompt(100, 1), .sampling = PlainSampling(120)}, sink);
  EXPECT_THAT(refused.status(), StatusIs(absl::StatusCode::kOutOfRange,
                                         AllOf(HasSubstr("need 14 blocks"), HasSubstr("has 12"))));
  EXPECT_EQ(Rows(cluster, "prefill-0", 0), 0);
}

TEST(ReplicaClusterTest, CancelledAndKilledAtAnyMomentNothingIsLeaked) {
  const uint32_t seeds = ForTestSize<uint32_t>(4, 12, 200);
  for (uint32_t seed = 1; seed <= seeds; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    std::mt19937 rng(seed);
    const auto pick = [&](int n) { return static_cast<int>(rng() % static_cast<uint32_t>(n)); };
    const SimCluster::Options options = {.prefill = 2,
                                         .prefill_replicas = 1 + pick(2),
                                         .decode_replicas = 2,
                                         .kv_blocks = 24,
                                         .prompt_rows = pick(2) * 16,
                                         .swap_blocks = 16 * pick(2)};
    SimCluster cluster(options);
    LoneEngine alone(options);
    struct One {
      std::vector<TokenId> prompt;
      RecordingSink sink;
      router::SequenceId id = 0;
      bool cancelled = false;
    };
    std::vector<std::unique_ptr<One>> all;
    for (int i = 0; i < 10; ++i) {
      One& one = *all.emplace_back(std::make_unique<One>());
      one.prompt =
          Prompt(static_cast<size_t>(10 + pick(120)), seed * 100 + static_cast<uint32_t>(i));
      one.id = cluster.Submit(one.prompt, PlainSampling(1 + pick(60)), one.sink);
      cluster.Run(absl::Milliseconds(pick(12)));
      One& other = *all[static_cast<size_t>(pick(i + 1))];
      if (pick(3) == 0 && !other.sink.ended) {
        cluster.service().Cancel(other.id);
        other.cancelled = true;
      }
      if (i == 5) {
        cluster.Kill("prefill-1");
        cluster.Run(absl::Milliseconds(pick(8)));
        cluster.Start("prefill-1");
      }
    }
    ASSERT_TRUE(cluster.RunUntil([&] {
      return std::ranges::all_of(all,
                                 [](const auto& one) { return one->sink.ended || one->cancelled; });
    }));
    for (const auto& one : all) {
      if (one->cancelled) continue;
      EXPECT_THAT(one->sink.end.status, IsOk());
      const auto ids = one->sink.ids();
      EXPECT_EQ(ids, alone.Answer(one->prompt, PlainSampling(static_cast<int32_t>(ids.size()))));
    }
    EXPECT_TRUE(cluster.RunUntil([&] { return cluster.Idle(); }));
    if (::testing::Test::HasFailure()) break;
  }
}

}  // namespace
}  // namespace lynx::testing
