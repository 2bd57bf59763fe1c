#include <cstdint>
#include <map>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "services/router/placement/least_load.h"
#include "services/router/placement/load_tracker.h"

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
