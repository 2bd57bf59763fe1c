#include <cstdint>
#include <limits>
#include <map>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "services/router/placement/least_load.h"
#include "services/router/placement/load_tracker.h"
#include "services/router/placement/prefix_aware.h"
#include "services/router/placement/random_choice.h"
#include "services/router/placement/round_robin.h"
#include "services/router/placement/slo_aware.h"

namespace lynx::router {
namespace {

using ::testing::Each;
using ::testing::Pair;

Member Node(NodeId id, int free_blocks, int running) {
  Member member;
  member.id = id;
  member.status.set_kv_blocks_free(free_blocks);
  member.status.set_running_sequences(running);
  return member;
}

TEST(LeastLoadTest, DecodeTakesTheLeastLoadedNodeWithRoom) {
  LeastLoad policy;
  const std::vector<DecodeCandidate> nodes = {
      {.node = 1, .free_blocks = 100, .load = 5},
      {.node = 2, .free_blocks = 3, .load = 0},
      {.node = 3, .free_blocks = 50, .load = 4},
  };
  EXPECT_EQ(policy.PickDecode(nodes, {.blocks_now = 3}), 2u);
  EXPECT_EQ(policy.PickDecode(nodes, {.blocks_now = 4}), 3u);
  EXPECT_EQ(policy.PickDecode(nodes, {.blocks_now = 51}), 1u);
  EXPECT_EQ(policy.PickDecode(nodes, {.blocks_now = 101}), std::nullopt);
  EXPECT_EQ(policy.PickDecode({}, {.blocks_now = 1}), std::nullopt);
}

// Two attention replicas have 30 blocks each: together they do not take what neither does.
TEST(LeastLoadTest, ASequenceNeedsItsRoomInOneReplica) {
  Member node = Node(1, /*free_blocks=*/60, /*running=*/0);
  node.status.set_kv_blocks_sequence(40);
  node.status.set_kv_blocks_free_sequence(30);
  LoadTracker tracker;
  LeastLoad policy;
  const std::vector<DecodeCandidate> nodes = {tracker.Decode(node)};
  EXPECT_EQ(nodes[0].free_blocks, 60);
  EXPECT_EQ(policy.PickDecode(nodes, {.blocks_now = 30}), 1u);
  EXPECT_EQ(policy.PickDecode(nodes, {.blocks_now = 31}), std::nullopt);
}

TEST(LeastLoadTest, EqualLoadGoesWhereMoreBlocksAreFree) {
  LeastLoad policy;
  const std::vector<DecodeCandidate> nodes = {{.node = 1, .free_blocks = 10, .load = 1},
                                              {.node = 2, .free_blocks = 11, .load = 1}};
  EXPECT_EQ(policy.PickDecode(nodes, {.blocks_now = 1}), 2u);
}

TEST(LeastLoadTest, EqualNodesTakeTurnsAlsoWhenSomeComeAndGo) {
  LeastLoad policy;
  std::vector<DecodeCandidate> nodes = {
      {.node = 4, .free_blocks = 9}, {.node = 7, .free_blocks = 9}, {.node = 9, .free_blocks = 9}};
  std::map<NodeId, int> picks;
  for (int i = 0; i < 30; ++i) ++picks[*policy.PickDecode(nodes, {.blocks_now = 1})];
  EXPECT_THAT(picks, Each(Pair(::testing::_, 10)));
  EXPECT_EQ(policy.PickDecode(nodes, {.blocks_now = 1}), 4u);
  nodes.erase(nodes.begin());
  EXPECT_EQ(policy.PickDecode(nodes, {.blocks_now = 1}), 7u);

  std::vector<PrefillCandidate> prefill = {{.node = 1}, {.node = 2}};
  EXPECT_EQ(policy.PickPrefill(prefill, {}), 1u);
  EXPECT_EQ(policy.PickPrefill(prefill, {}), 2u);
  EXPECT_EQ(policy.PickPrefill(prefill, {}), 1u);
  prefill[1].queued_tokens = 1;
  EXPECT_EQ(policy.PickPrefill(prefill, {}), 1u);
}

TEST(RoundRobinTest, EachNodeWithRoomHasItsTurn) {
  RoundRobin policy;
  const std::vector<DecodeCandidate> nodes = {{.node = 1, .free_blocks = 9, .load = 7},
                                              {.node = 2, .free_blocks = 1},
                                              {.node = 3, .free_blocks = 9}};
  EXPECT_EQ(policy.PickDecode(nodes, {.blocks_now = 2}), 1u);
  EXPECT_EQ(policy.PickDecode(nodes, {.blocks_now = 2}), 3u);
  EXPECT_EQ(policy.PickDecode(nodes, {.blocks_now = 1}), 1u);
  EXPECT_EQ(policy.PickDecode(nodes, {.blocks_now = 1}), 2u);
  EXPECT_EQ(policy.PickDecode(nodes, {.blocks_now = 10}), std::nullopt);
  const std::vector<PrefillCandidate> prefill = {{.node = 1, .queued_tokens = 50}, {.node = 2}};
  EXPECT_EQ(policy.PickPrefill(prefill, {}), 1u);
  EXPECT_EQ(policy.PickPrefill(prefill, {}), 2u);
}

TEST(RandomChoiceTest, EveryNodeWithRoomIsChosenAboutAsOften) {
  RandomChoice policy(1);
  const std::vector<DecodeCandidate> nodes = {
      {.node = 1, .free_blocks = 9}, {.node = 2, .free_blocks = 1}, {.node = 3, .free_blocks = 9}};
  std::map<NodeId, int> picks;
  for (int i = 0; i < 1000; ++i) ++picks[*policy.PickDecode(nodes, {.blocks_now = 2})];
  EXPECT_EQ(picks.size(), 2u);
  EXPECT_NEAR(picks[1], 500, 80);
  EXPECT_EQ(policy.PickDecode(nodes, {.blocks_now = 10}), std::nullopt);
}

constexpr StepTime kFast = {
    .base = absl::Milliseconds(2), .per_row = absl::Milliseconds(1), .max_rows = 16};
constexpr StepTime kSlow = {
    .base = absl::Milliseconds(4), .per_row = absl::Milliseconds(2), .max_rows = 16};

TEST(SloAwareTest, DecodeGoesWhereTheStepStaysShortest) {
  SloAware policy;
  // 2 + 6 * 1 ms against 4 + 3 * 2 ms, then 2 + 9 * 1 ms.
  EXPECT_EQ(policy.PickDecode(
                std::vector<DecodeCandidate>{
                    {.node = 1, .free_blocks = 9, .load = 5, .step_time = kFast},
                    {.node = 2, .free_blocks = 9, .load = 2, .step_time = kSlow}},
                {.blocks_now = 1}),
            1u);
  EXPECT_EQ(policy.PickDecode(
                std::vector<DecodeCandidate>{
                    {.node = 1, .free_blocks = 9, .load = 8, .step_time = kFast},
                    {.node = 2, .free_blocks = 9, .load = 2, .step_time = kSlow}},
                {.blocks_now = 1}),
            2u);
}

TEST(SloAwareTest, ASequenceThatWouldSlowOthersPastTheLimitWaitsWhileItHasTime) {
  SloAware policy;
  const std::vector<DecodeCandidate> nodes = {
      {.node = 1, .free_blocks = 9, .load = 9, .step_time = kFast}};  // 12 ms with one more.
  PlacementRequest request = {
      .blocks_now = 1, .ttft_left = absl::Milliseconds(1), .tpot_limit = absl::Milliseconds(12)};
  EXPECT_EQ(policy.PickDecode(nodes, request), 1u);
  request.tpot_limit = absl::Milliseconds(11);
  EXPECT_EQ(policy.PickDecode(nodes, request), std::nullopt);
  request.ttft_left = absl::ZeroDuration();
  EXPECT_EQ(policy.PickDecode(nodes, request), 1u);
}

TEST(SloAwareTest, SequencesBeyondAStepWaitForTurns) {
  SloAware policy;
  // 40 sequences in turns of 16 at 18 ms each: a token every 45 ms.
  const std::vector<DecodeCandidate> nodes = {
      {.node = 1, .free_blocks = 9, .load = 39, .step_time = kFast}};
  PlacementRequest request = {.blocks_now = 1, .tpot_limit = absl::Milliseconds(45)};
  EXPECT_EQ(policy.PickDecode(nodes, request), 1u);
  request.tpot_limit = absl::Milliseconds(44);
  EXPECT_EQ(policy.PickDecode(nodes, request), std::nullopt);
}

TEST(SloAwareTest, PrefillGoesWhereTheFirstTokenComesFirst) {
  SloAware policy;
  const PlacementRequest request = {.prompt_tokens = 16};
  // 32 rows in two steps of 2 ms and 1 ms a row: 36 ms; 16 in one of 4 ms and 2 ms a row: 36 ms.
  const std::vector<PrefillCandidate> equal = {{.node = 1, .queued_tokens = 16, .step_time = kFast},
                                               {.node = 2, .queued_tokens = 0, .step_time = kSlow}};
  EXPECT_EQ(policy.PickPrefill(equal, request), 2u) << "the shorter queue of two equals";
  const std::vector<PrefillCandidate> unequal = {
      {.node = 1, .queued_tokens = 15, .step_time = kFast},
      {.node = 2, .queued_tokens = 0, .step_time = kSlow}};
  EXPECT_EQ(policy.PickPrefill(unequal, request), 1u);
  const std::vector<PrefillCandidate> unknown = {
      {.node = 1, .queued_tokens = 0, .step_time = kFast}, {.node = 2, .queued_tokens = 900}};
  EXPECT_EQ(policy.PickPrefill(unknown, request), 2u) << "it has told nothing yet";
}

constexpr StepTime kPrefillStep = {absl::Milliseconds(4), absl::Microseconds(50), 512};

TEST(PrefixAwareTest, PrefillGoesWhereThePrefixIsUntilTheQueueCostsMore) {
  PrefixAware policy;
  std::vector<PrefillCandidate> nodes = {
      {.node = 1, .step_time = kPrefillStep},
      {.node = 2, .step_time = kPrefillStep, .held_tokens = 800}};
  const PlacementRequest request = {.prompt_tokens = 1000};
  EXPECT_EQ(policy.PickPrefill(nodes, request), 2u);
  nodes[1].queued_tokens = 700;
  EXPECT_EQ(policy.PickPrefill(nodes, request), 2u);
  nodes[1].queued_tokens = 900;
  EXPECT_EQ(policy.PickPrefill(nodes, request), 1u);
  nodes[0].queued_tokens = 200;
  EXPECT_EQ(policy.PickPrefill(nodes, request), 2u);
}

TEST(PrefixAwareTest, WithoutStepTimesTheFewerRowsDecide) {
  PrefixAware policy;
  const std::vector<PrefillCandidate> nodes = {
      {.node = 1, .queued_tokens = 100},
      {.node = 2, .queued_tokens = 300, .held_tokens = 500},
      {.node = 3, .queued_tokens = 800}};
  EXPECT_EQ(policy.PickPrefill(nodes, {.prompt_tokens = 600}), 2u);
}

TEST(PrefixAwareTest, EqualPrefillNodesTakeTurns) {
  PrefixAware policy;
  const std::vector<PrefillCandidate> nodes = {{.node = 1}, {.node = 2}, {.node = 3}};
  std::map<NodeId, int> picks;
  for (int i = 0; i < 30; ++i) ++picks[policy.PickPrefill(nodes, {.prompt_tokens = 9})];
  EXPECT_THAT(picks, Each(Pair(::testing::_, 10)));
}

TEST(PrefixAwareTest, DecodeWeighsTheTransferAgainstSlowerSteps) {
  PrefixAware policy;
  const StepTime step = {absl::Milliseconds(10), absl::Milliseconds(1), 64};
  std::vector<DecodeCandidate> nodes = {
      {.node = 1, .free_blocks = 100, .load = 0, .step_time = step},
      {.node = 2, .free_blocks = 100, .load = 3, .step_time = step, .held_tokens = 1000}};
  PlacementRequest request = {.prompt_tokens = 1000, .blocks_now = 10, .answer_tokens = 100};
  // 3 ms more for each of 100 tokens, against 1000 tokens that have to come.
  request.transfer_per_token = absl::Microseconds(200);
  EXPECT_EQ(policy.PickDecode(nodes, request), 1u);
  request.transfer_per_token = absl::Microseconds(400);
  EXPECT_EQ(policy.PickDecode(nodes, request), 2u);
  nodes[1].free_blocks = 9;
  EXPECT_EQ(policy.PickDecode(nodes, request), 1u);
  nodes[0].free_blocks = 9;
  EXPECT_EQ(policy.PickDecode(nodes, request), std::nullopt);
}

TEST(PrefixAwareTest, OfDecodeNodesAboutAsGoodTheOneThatHoldsMost) {
  PrefixAware policy;
  const StepTime step = {absl::Milliseconds(100), absl::Milliseconds(1), 64};
  const std::vector<DecodeCandidate> nodes = {
      {.node = 1, .free_blocks = 9, .load = 0, .step_time = step},
      {.node = 2, .free_blocks = 9, .load = 2, .step_time = step, .held_tokens = 32},
      {.node = 3, .free_blocks = 9, .load = 9, .step_time = step, .held_tokens = 48}};
  EXPECT_EQ(policy.PickDecode(nodes, {.prompt_tokens = 50, .blocks_now = 1}), 2u);
}

TEST(SloAwareTest, WhatANodeHoldsOfThePromptCountsAsComputed) {
  SloAware policy;
  const std::vector<PrefillCandidate> nodes = {
      {.node = 1, .queued_tokens = 100, .step_time = kPrefillStep},
      {.node = 2, .queued_tokens = 400, .step_time = kPrefillStep, .held_tokens = 512}};
  EXPECT_EQ(policy.PickPrefill(nodes, {.prompt_tokens = 600}), 2u);
}

TEST(LoadTrackerTest, StepTimesThatAreNoTimesCountAsNotMeasured) {
  LoadTracker loads;
  Member node = Node(1, 10, 0);
  node.status.mutable_step_time()->set_base_seconds(0.5);
  node.status.mutable_step_time()->set_row_seconds(0.25);
  EXPECT_EQ(loads.Decode(node).step_time.Step(2), absl::Seconds(1));
  for (const double broken : {-1.0, 1e300, std::numeric_limits<double>::quiet_NaN()}) {
    node.status.mutable_step_time()->set_row_seconds(broken);
    EXPECT_FALSE(loads.Prefill(node).step_time.known()) << broken;
  }
}

TEST(LoadTrackerTest, CountsWhatTheHeartbeatCannotKnowYet) {
  LoadTracker loads;
  const Member node = Node(1, 100, 2);
  loads.Reserving(1, 10);
  EXPECT_EQ(loads.Decode(node).free_blocks, 90);
  EXPECT_EQ(loads.Decode(node).load, 3);
  loads.Granted(1, 10);
  EXPECT_EQ(loads.Decode(node).free_blocks, 90);
  loads.OnStatus(1);  // From here on the node itself counts the grant.
  EXPECT_EQ(loads.Decode(node).free_blocks, 100);
  EXPECT_EQ(loads.Decode(node).load, 2);
  loads.Released(1, 10, true);
  EXPECT_EQ(loads.Decode(node).free_blocks, 100) << "no block is counted free twice";
  EXPECT_TRUE(loads.empty());
}

TEST(LoadTrackerTest, AnUnansweredReserveOutlivesHeartbeats) {
  LoadTracker loads;
  loads.Reserving(1, 10);
  loads.OnStatus(1);
  EXPECT_EQ(loads.Decode(Node(1, 100, 0)).free_blocks, 90);
  EXPECT_EQ(loads.Decode(Node(1, 100, 0)).load, 1) << "ours is there whatever the node says";
  loads.Released(1, 10, false);
  EXPECT_TRUE(loads.empty());
}

// A burst within one heartbeat must not all go to one node.
TEST(LoadTrackerTest, ABurstIsSharedBetweenHeartbeats) {
  LoadTracker loads;
  LeastLoad policy;
  const Member a = Node(1, 100, 0);
  const Member b = Node(2, 100, 6);
  std::map<NodeId, int> picks;
  for (int i = 0; i < 20; ++i) {
    const std::vector<DecodeCandidate> nodes = {loads.Decode(a), loads.Decode(b)};
    const NodeId node = *policy.PickDecode(nodes, {.blocks_now = 2});
    loads.Reserving(node, 2);
    ++picks[node];
  }
  EXPECT_EQ(picks[1], 13);
  EXPECT_EQ(picks[2], 7);
}

TEST(LoadTrackerTest, PrefillQueueIncludesWhatIsOnItsWay) {
  LoadTracker loads;
  Member node = Node(1, 0, 0);
  node.status.set_queued_prompt_tokens(50);
  loads.PromptSent(1, 200);
  EXPECT_EQ(loads.Prefill(node).queued_tokens, 250);
  loads.OnStatus(1);
  EXPECT_EQ(loads.Prefill(node).queued_tokens, 200) << "ours is unanswered, so it is there";
  loads.PromptDone(1, 200);
  EXPECT_EQ(loads.Prefill(node).queued_tokens, 50);
  EXPECT_TRUE(loads.empty());
}

TEST(LoadTrackerTest, AbsurdCountsAreBounded) {
  LoadTracker loads;
  Member node = Node(1, 10, -5);
  node.status.set_queued_prompt_tokens(INT64_MAX);
  loads.Reserving(1, 2);
  loads.PromptSent(1, 50);
  EXPECT_EQ(loads.Decode(node).load, 1) << "not below what this router has there";
  EXPECT_GT(loads.Prefill(node).queued_tokens, int64_t{1} << 32);
  EXPECT_LT(loads.Prefill(node).queued_tokens, INT64_MAX / 2);
  node.status.set_queued_prompt_tokens(INT64_MIN);
  EXPECT_EQ(loads.Prefill(node).queued_tokens, 50);
}

TEST(LoadTrackerTest, ANodeThatIsGoneTakesItsNumbersAlong) {
  LoadTracker loads;
  loads.Reserving(1, 10);
  loads.PromptSent(1, 5);
  loads.OnGone(1);
  loads.Released(1, 10, false);
  loads.PromptDone(1, 5);
  EXPECT_TRUE(loads.empty());
}

}  // namespace
}  // namespace lynx::router
