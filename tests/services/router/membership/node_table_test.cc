#include "services/router/membership/node_table.h"

#include <string>
#include <vector>

#include "common/base/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lynx::router {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::SizeIs;
using Event = NodeTable::Event;

proto::NodeStatus Status(proto::Role role, proto::NodeState state = proto::NODE_STATE_READY,
                         const std::string& hash = "h1") {
  proto::NodeStatus status;
  status.set_role(role);
  status.set_state(state);
  status.set_model_name("m");
  status.set_vocab_size(100);
  status.set_compatibility_hash(hash);
  return status;
}

class NodeTableTest : public ::testing::Test {
 protected:
  NodeTableTest() : table_({.model_name = "m", .vocab_size = 100}) {
    table_.Add("p:1", proto::ROLE_PREFILL);
    table_.Add("d:1", proto::ROLE_DECODE);
  }
  std::vector<Event> Hear(const std::string& endpoint, Incarnation incarnation,
                          const proto::NodeStatus& status) {
    std::vector<Event> events;
    table_.OnStatus(endpoint, incarnation, status, clock_.Now(), events);
    return events;
  }
  // Lets time pass, with a tick every half second and at the end.
  std::vector<Event> After(absl::Duration time) {
    std::vector<Event> events;
    while (time > absl::ZeroDuration()) {
      const absl::Duration step = std::min(time, absl::Milliseconds(500));
      time -= step;
      clock_.Advance(step);
      table_.Tick(clock_.Now(), events);
    }
    return events;
  }
  std::string Reason() {
    std::string reason;
    return table_.Ready(&reason) ? "ready" : reason;
  }

  ManualClock clock_;
  NodeTable table_;
};

TEST_F(NodeTableTest, IsReadyWithOneDecodeNodeThatTakesPrompts) {
  NodeTable table({});
  table.Add("d:1", proto::ROLE_DECODE);
  std::string reason;
  EXPECT_FALSE(table.Ready(&reason));
  EXPECT_THAT(reason, AllOf(HasSubstr("no decode node is ready: d:1"), Not(HasSubstr("prefill"))));
  proto::NodeStatus status;
  status.set_role(proto::ROLE_DECODE);
  status.set_state(proto::NODE_STATE_READY);
  status.set_compatibility_hash("h");
  std::vector<NodeTable::Event> events;
  table.OnStatus("d:1", 1, status, absl::UnixEpoch(), events);
  EXPECT_FALSE(table.Ready(&reason));
  EXPECT_EQ(reason, "no prefill node is ready: none is known");
  status.set_prompt_rows(64);
  table.OnStatus("d:1", 1, status, absl::UnixEpoch(), events);
  EXPECT_TRUE(table.Ready(&reason));
  EXPECT_EQ(reason, "");
}

TEST_F(NodeTableTest, IsReadyWithOneCompatiblePair) {
  EXPECT_THAT(Reason(), AllOf(HasSubstr("no prefill node is ready: p:1 is gone"),
                              HasSubstr("no decode node is ready: d:1 is gone")));
  Hear("p:1", 11, Status(proto::ROLE_PREFILL));
  EXPECT_THAT(Reason(), AllOf(HasSubstr("no decode"), ::testing::Not(HasSubstr("no prefill"))));
  Hear("d:1", 22, Status(proto::ROLE_DECODE, proto::NODE_STATE_LOADING));
  EXPECT_THAT(Reason(), HasSubstr("d:1 is loading"));
  Hear("d:1", 22, Status(proto::ROLE_DECODE));
  EXPECT_EQ(Reason(), "ready");
  Hear("d:1", 22, Status(proto::ROLE_DECODE, proto::NODE_STATE_DRAINING));
  EXPECT_THAT(Reason(), HasSubstr("d:1 is draining"));
}

TEST_F(NodeTableTest, NodesOfDifferentCompatibilityAreNoPair) {
  Hear("p:1", 11, Status(proto::ROLE_PREFILL, proto::NODE_STATE_READY, "bf16"));
  Hear("d:1", 22, Status(proto::ROLE_DECODE, proto::NODE_STATE_READY, "f32"));
  EXPECT_THAT(Reason(), AllOf(HasSubstr("bf16"), HasSubstr("f32")));
  EXPECT_THAT(table_.ReadyNodes(proto::ROLE_DECODE, "bf16"), SizeIs(0));
  EXPECT_THAT(table_.ReadyNodes(proto::ROLE_DECODE, "f32"), SizeIs(1));
}

TEST_F(NodeTableTest, ANodeWithoutCompatibilityHashIsNoPair) {
  Hear("p:1", 11, Status(proto::ROLE_PREFILL, proto::NODE_STATE_READY, ""));
  Hear("d:1", 22, Status(proto::ROLE_DECODE, proto::NODE_STATE_READY, ""));
  EXPECT_NE(Reason(), "ready");
  EXPECT_THAT(table_.ReadyNodes(proto::ROLE_DECODE), SizeIs(0));
}

TEST_F(NodeTableTest, RefusalsNameBothValues) {
  auto events = Hear("p:1", 11, Status(proto::ROLE_DECODE));
  ASSERT_THAT(events, SizeIs(1));
  EXPECT_EQ(events[0].state, MemberState::kRefused);
  EXPECT_THAT(events[0].detail, AllOf(HasSubstr("as prefill"), HasSubstr("is decode")));
  EXPECT_THAT(Reason(), HasSubstr("is decode"));

  proto::NodeStatus other = Status(proto::ROLE_DECODE);
  other.set_model_name("other");
  EXPECT_THAT(Hear("d:1", 22, other)[0].detail, AllOf(HasSubstr("\"other\""), HasSubstr("\"m\"")));
  other = Status(proto::ROLE_DECODE);
  other.set_vocab_size(99);
  EXPECT_THAT(Hear("d:1", 22, other)[0].detail, AllOf(HasSubstr("99"), HasSubstr("100")));
  EXPECT_THAT(Hear("d:1", 22, other), SizeIs(0)) << "the same refusal is told once";
  EXPECT_THAT(Hear("d:1", 22, Status(proto::ROLE_DECODE)), SizeIs(1)) << "mended";
  EXPECT_EQ(table_.FindEndpoint("d:1")->state, MemberState::kReady);
}

TEST_F(NodeTableTest, ANodeWithOtherExpertsIsRefused) {
  NodeTable table({.model_name = "m", .experts = 64, .experts_per_token = 8});
  table.Add("d:1", proto::ROLE_DECODE);
  std::vector<Event> events;
  proto::NodeStatus status = Status(proto::ROLE_DECODE);
  table.OnStatus("d:1", 22, status, clock_.Now(), events);
  EXPECT_EQ(table.FindEndpoint("d:1")->state, MemberState::kReady) << "it does not tell";
  status.set_experts(64);
  status.set_experts_per_token(8);
  table.OnStatus("d:1", 22, status, clock_.Now(), events);
  EXPECT_EQ(table.FindEndpoint("d:1")->state, MemberState::kReady);
  status.set_experts_per_token(4);
  table.OnStatus("d:1", 22, status, clock_.Now(), events);
  EXPECT_EQ(table.FindEndpoint("d:1")->state, MemberState::kRefused);
  EXPECT_THAT(table.FindEndpoint("d:1")->detail, AllOf(HasSubstr("4 of 64"), HasSubstr("8 of 64")));
}

TEST_F(NodeTableTest, SilenceMakesSuspectThenGone) {
  Hear("d:1", 22, Status(proto::ROLE_DECODE));
  const NodeId id = table_.FindEndpoint("d:1")->id;
  EXPECT_THAT(After(absl::Milliseconds(1499)), SizeIs(0));
  auto events = After(absl::Milliseconds(1));
  ASSERT_THAT(events, SizeIs(1));
  EXPECT_EQ(events[0].state, MemberState::kSuspect);
  EXPECT_THAT(table_.ReadyNodes(proto::ROLE_DECODE), SizeIs(0));

  Hear("d:1", 22, Status(proto::ROLE_DECODE));
  EXPECT_EQ(table_.FindEndpoint("d:1")->state, MemberState::kReady);
  EXPECT_EQ(table_.FindEndpoint("d:1")->id, id) << "a pause is no new life";

  After(absl::Milliseconds(1500));
  events = After(absl::Milliseconds(3500));
  ASSERT_THAT(events, SizeIs(1));
  EXPECT_EQ(events[0].kind, Event::kGone);
  EXPECT_EQ(events[0].id, id);
  EXPECT_EQ(table_.Find(id), nullptr);

  // The same process was paused longer than we wait: it comes back under a new id.
  events = Hear("d:1", 22, Status(proto::ROLE_DECODE));
  ASSERT_THAT(events, SizeIs(1));
  EXPECT_EQ(events[0].kind, Event::kJoined);
  EXPECT_NE(events[0].id, id);
}

TEST_F(NodeTableTest, ABrokenConnectionMakesSuspectAtOnceThenGone) {
  Hear("d:1", 22, Status(proto::ROLE_DECODE));
  const NodeId id = table_.FindEndpoint("d:1")->id;
  std::vector<Event> events;
  table_.OnDisconnected("d:1", clock_.Now(), events);
  ASSERT_THAT(events, SizeIs(1));
  EXPECT_EQ(events[0].state, MemberState::kSuspect);
  EXPECT_THAT(After(absl::Milliseconds(499)), SizeIs(0));
  table_.OnDisconnected("d:1", clock_.Now(), events);  // Again, without a word in between.
  EXPECT_THAT(events, SizeIs(1)) << "nothing new";
  events = After(absl::Milliseconds(1));
  ASSERT_THAT(events, SizeIs(1));
  EXPECT_EQ(events[0].kind, Event::kGone);
  EXPECT_EQ(events[0].id, id);
  EXPECT_THAT(events[0].detail, HasSubstr("closed its connection"));
}

TEST_F(NodeTableTest, ANodeThatIsHeardOnItsNewConnectionStays) {
  Hear("d:1", 22, Status(proto::ROLE_DECODE));
  const NodeId id = table_.FindEndpoint("d:1")->id;
  std::vector<Event> events;
  table_.OnDisconnected("d:1", clock_.Now(), events);
  After(absl::Milliseconds(400));
  Hear("d:1", 22, Status(proto::ROLE_DECODE));
  EXPECT_EQ(table_.FindEndpoint("d:1")->state, MemberState::kReady);
  EXPECT_THAT(After(absl::Milliseconds(1499)), SizeIs(0));
  EXPECT_EQ(table_.FindEndpoint("d:1")->id, id);
}

TEST_F(NodeTableTest, ABrokenConnectionIsNotHeldAgainstTheNextNodeThere) {
  Hear("d:1", 22, Status(proto::ROLE_DECODE));
  std::vector<Event> events;
  table_.OnDisconnected("d:1", clock_.Now(), events);
  After(absl::Milliseconds(400));
  Hear("d:1", 23, Status(proto::ROLE_DECODE));
  EXPECT_THAT(After(absl::Milliseconds(500)), SizeIs(0));
  // Nor is it news that nobody answers where nobody did.
  events.clear();
  table_.OnDisconnected("p:1", clock_.Now(), events);
  table_.OnDisconnected("unknown:1", clock_.Now(), events);
  EXPECT_THAT(events, SizeIs(0));
}

TEST_F(NodeTableTest, ANewIncarnationReplacesTheOldOneAtOnceAndForGood) {
  Hear("d:1", 22, Status(proto::ROLE_DECODE));
  const NodeId old_id = table_.FindEndpoint("d:1")->id;
  auto events = Hear("d:1", 23, Status(proto::ROLE_DECODE, proto::NODE_STATE_LOADING));
  ASSERT_THAT(events, SizeIs(2));
  EXPECT_EQ(events[0].kind, Event::kGone);
  EXPECT_EQ(events[0].id, old_id);
  EXPECT_EQ(events[1].kind, Event::kJoined);
  EXPECT_EQ(events[1].state, MemberState::kLoading);

  std::vector<Event> late;
  EXPECT_FALSE(table_.OnStatus("d:1", 22, Status(proto::ROLE_DECODE), clock_.Now(), late));
  EXPECT_THAT(late, SizeIs(0));
  EXPECT_EQ(table_.FindEndpoint("d:1")->incarnation, 23u);
}

TEST_F(NodeTableTest, AFailedNodeIsGoneAtOnce) {
  Hear("d:1", 22, Status(proto::ROLE_DECODE));
  auto events = Hear("d:1", 22, Status(proto::ROLE_DECODE, proto::NODE_STATE_FAILED));
  ASSERT_THAT(events, SizeIs(1));
  EXPECT_EQ(events[0].kind, Event::kGone);
}

// A router that was frozen has not heard what its nodes said meanwhile.
TEST_F(NodeTableTest, TheRoutersOwnSleepIsNobodysSilence) {
  Hear("p:1", 11, Status(proto::ROLE_PREFILL));
  Hear("d:1", 22, Status(proto::ROLE_DECODE));
  EXPECT_THAT(After(absl::Milliseconds(500)), SizeIs(0));
  clock_.Advance(absl::Minutes(1));
  std::vector<Event> events;
  table_.Tick(clock_.Now(), events);
  EXPECT_THAT(events, SizeIs(0));
  EXPECT_EQ(Reason(), "ready");
  // The one that is there speaks, the other one died and is found out as ever.
  Hear("p:1", 11, Status(proto::ROLE_PREFILL));
  EXPECT_THAT(After(absl::Milliseconds(999)), SizeIs(0));
  events = After(absl::Milliseconds(1));
  ASSERT_THAT(events, SizeIs(1));
  EXPECT_EQ(events[0].endpoint, "d:1");
  EXPECT_EQ(events[0].state, MemberState::kSuspect);
  Hear("p:1", 11, Status(proto::ROLE_PREFILL));
  events = After(absl::Milliseconds(3500));
  ASSERT_FALSE(events.empty());
  EXPECT_EQ(events.back().kind, Event::kGone);
  EXPECT_EQ(events.back().endpoint, "d:1");
}

// One that said that it would leave, and left.
TEST_F(NodeTableTest, ADrainedNodeThatIsGoneIsMarkedSo) {
  Hear("d:1", 22, Status(proto::ROLE_DECODE));
  proto::NodeStatus draining = Status(proto::ROLE_DECODE);
  draining.set_state(proto::NODE_STATE_DRAINING);
  Hear("d:1", 22, draining);
  std::vector<Event> events = After(absl::Seconds(5));
  ASSERT_THAT(events, SizeIs(1));
  EXPECT_TRUE(events[0].kind == Event::kGone && events[0].drained);
  Hear("d:1", 23, Status(proto::ROLE_DECODE));
  events = After(absl::Seconds(5));
  EXPECT_FALSE(events.back().drained);
}

TEST_F(NodeTableTest, OneProcessAtTwoAddressesCountsOnce) {
  table_.Add("[::1]:1", proto::ROLE_DECODE);
  Hear("d:1", 22, Status(proto::ROLE_DECODE));
  EXPECT_THAT(Hear("[::1]:1", 22, Status(proto::ROLE_DECODE)), SizeIs(0));
  EXPECT_THAT(table_.ReadyNodes(proto::ROLE_DECODE), SizeIs(1));
  After(absl::Seconds(5));
  EXPECT_THAT(Hear("[::1]:1", 22, Status(proto::ROLE_DECODE)), SizeIs(1)) << "now it is the way";
  EXPECT_THAT(table_.ReadyNodes(proto::ROLE_DECODE), SizeIs(1));
}

TEST_F(NodeTableTest, TwoNodesMaySwapAddresses) {
  table_.Add("d:2", proto::ROLE_DECODE);
  Hear("d:1", 22, Status(proto::ROLE_DECODE));
  Hear("d:2", 33, Status(proto::ROLE_DECODE));
  for (int round = 0; round < 3; ++round) {
    Hear("d:1", 33, Status(proto::ROLE_DECODE));
    Hear("d:2", 22, Status(proto::ROLE_DECODE));
  }
  EXPECT_EQ(table_.FindEndpoint("d:1")->incarnation, 33u);
  EXPECT_EQ(table_.FindEndpoint("d:2")->incarnation, 22u);
  EXPECT_THAT(table_.ReadyNodes(proto::ROLE_DECODE), SizeIs(2));
}

TEST_F(NodeTableTest, ANodeComesAndGoesTwentyTimes) {
  Hear("p:1", 11, Status(proto::ROLE_PREFILL));
  NodeId last = 0;
  for (Incarnation incarnation = 100; incarnation < 120; ++incarnation) {
    Hear("p:1", 11, Status(proto::ROLE_PREFILL));
    Hear("d:1", incarnation, Status(proto::ROLE_DECODE));
    ASSERT_EQ(Reason(), "ready");
    ASSERT_GT(table_.FindEndpoint("d:1")->id, last);
    last = table_.FindEndpoint("d:1")->id;
    if (incarnation % 2 == 0) After(absl::Seconds(5));  // Silence; else it is replaced.
  }
  std::vector<Event> events;
  table_.Remove("d:1", events);
  EXPECT_EQ(table_.FindEndpoint("d:1"), nullptr);
}

}  // namespace
}  // namespace lynx::router
