#include "common/rpc/inproc_channel.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/base/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/faulty_channel.h"
#include "tests/support/status_matchers.h"

namespace lynx::rpc {
namespace {

using ::lynx::testing::ChannelFault;
using ::lynx::testing::FaultyChannel;
using ::lynx::testing::IsOk;
using ::lynx::testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// Keeps what arrives.
struct Inbox final : Channel::Handler {
  void OnMessage(PeerId peer, proto::Envelope envelope) override {
    peers.push_back(peer);
    sequences.push_back(envelope.cancel().sequence());
  }
  void OnDisconnected(PeerId peer) override { disconnected.push_back(peer); }
  std::vector<PeerId> peers;
  std::vector<uint64_t> sequences;
  std::vector<PeerId> disconnected;
};

proto::Envelope Cancel(uint64_t sequence) {
  proto::Envelope envelope;
  envelope.mutable_cancel()->set_sequence(sequence);
  return envelope;
}

class InProcChannelTest : public ::testing::Test {
 protected:
  std::unique_ptr<InProcChannel> New(const std::string& name, size_t max_queued = 8) {
    return InProcChannel::Create(network_, {.bind = name, .max_queued = max_queued}, loop_,
                                 registry_)
        .value();
  }

  ManualClock clock_;
  SimEventLoop loop_{clock_};
  InProcNetwork network_;
  telemetry::Registry registry_;
};

TEST_F(InProcChannelTest, MessagesArriveInOrderAndAnswersFindTheirWay) {
  auto node = New("node");
  auto router = New("");
  Inbox at_node;
  Inbox at_router;
  node->Start(at_node);
  router->Start(at_router);
  const PeerId to_node = router->Connect("node").value();
  for (uint64_t i = 1; i <= 3; ++i) EXPECT_THAT(router->Send(to_node, Cancel(i)), IsOk());
  EXPECT_THAT(at_node.sequences, IsEmpty()) << "delivered inside Send";
  loop_.RunDue();
  EXPECT_THAT(at_node.sequences, ElementsAre(1, 2, 3));
  EXPECT_THAT(node->Send(at_node.peers[0], Cancel(9)), IsOk());
  loop_.RunDue();
  EXPECT_THAT(at_router.sequences, ElementsAre(9));
  EXPECT_EQ(at_router.peers[0], to_node);
}

TEST_F(InProcChannelTest, RefusalsTellTheCallerWhatToDoNext) {
  auto node = New("node", /*max_queued=*/2);
  auto router = New("", /*max_queued=*/2);
  Inbox inbox;
  node->Start(inbox);
  router->Start(inbox);
  EXPECT_THAT(InProcChannel::Create(network_, {.bind = "node"}, loop_, registry_),
              StatusIs(absl::StatusCode::kAlreadyExists, HasSubstr("node")));
  EXPECT_THAT(router->Connect(""), StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(router->Send(77, Cancel(1)), StatusIs(absl::StatusCode::kNotFound));
  const PeerId nobody = router->Connect("nobody").value();
  EXPECT_THAT(router->Send(nobody, Cancel(1)), StatusIs(absl::StatusCode::kUnavailable));

  const PeerId to_node = router->Connect("node").value();
  EXPECT_THAT(router->Send(to_node, Cancel(1)), IsOk());
  EXPECT_THAT(router->Send(to_node, Cancel(2)), IsOk());
  EXPECT_THAT(router->Send(to_node, Cancel(3)), StatusIs(absl::StatusCode::kResourceExhausted));
  loop_.RunDue();
  EXPECT_THAT(router->Send(to_node, Cancel(4)), IsOk()) << "room again once delivered";
  router->Disconnect(to_node);
  EXPECT_THAT(router->Send(to_node, Cancel(5)), StatusIs(absl::StatusCode::kNotFound));
}

TEST_F(InProcChannelTest, ARestartedNodeIsReachedByTheSamePeerAndSeesANewOne) {
  auto node = New("node");
  auto router = New("");
  Inbox first;
  Inbox at_router;
  node->Start(first);
  router->Start(at_router);
  const PeerId to_node = router->Connect("node").value();
  ASSERT_THAT(router->Send(to_node, Cancel(1)), IsOk());
  loop_.RunDue();
  ASSERT_THAT(router->Send(to_node, Cancel(2)), IsOk());
  node.reset();  // With a message on its way.
  loop_.RunDue();
  EXPECT_THAT(router->Send(to_node, Cancel(3)), StatusIs(absl::StatusCode::kUnavailable));
  node = New("node");
  Inbox second;
  node->Start(second);
  ASSERT_THAT(router->Send(to_node, Cancel(4)), IsOk());
  loop_.RunDue();
  EXPECT_THAT(first.sequences, ElementsAre(1));
  EXPECT_THAT(second.sequences, ElementsAre(4));
}

TEST_F(InProcChannelTest, WhoConnectedHearsThatTheOtherEndIsGone) {
  auto node = New("node");
  auto router = New("");
  auto stranger = New("");
  Inbox inbox;
  Inbox other;
  node->Start(inbox);
  router->Start(inbox);
  stranger->Start(other);
  const PeerId to_node = router->Connect("node").value();
  stranger->Connect("node").value();  // Has not said a word: there is no connection yet.
  const PeerId forgotten = router->Connect("node").value();
  EXPECT_THAT(router->Send(to_node, Cancel(1)), IsOk());
  EXPECT_THAT(router->Send(forgotten, Cancel(2)), IsOk());
  loop_.RunDue();
  router->Disconnect(forgotten);
  node.reset();
  EXPECT_THAT(inbox.disconnected, IsEmpty()) << "told inside the destructor";
  loop_.RunDue();
  EXPECT_THAT(inbox.disconnected, ElementsAre(to_node));
  EXPECT_THAT(other.disconnected, IsEmpty());
}

TEST_F(InProcChannelTest, AMessageWithoutAKnownBodyIsDroppedAndCounted) {
  auto node = New("node");
  auto router = New("");
  Inbox inbox;
  node->Start(inbox);
  router->Start(inbox);
  ASSERT_THAT(router->Send(router->Connect("node").value(), proto::Envelope()), IsOk());
  loop_.RunDue();
  EXPECT_THAT(inbox.sequences, IsEmpty());
  EXPECT_THAT(registry_.Render(),
              HasSubstr("lynx_control_messages_dropped_total{reason=\"unknown_kind\"} 1"));
}

TEST_F(InProcChannelTest, TheFaultyChannelLosesDoublesAndReorders) {
  auto node = New("node");
  FaultyChannel router(New(""), loop_);
  Inbox at_node;
  Inbox at_router;
  node->Start(at_node);
  router.Start(at_router);
  const PeerId to_node = router.Connect("node").value();
  router.set_script([](int number, const proto::Envelope&) {
    ChannelFault fault;
    if (number == 0) fault.drop = true;
    if (number == 1) fault.copies = 2;
    if (number == 2) fault.delay = absl::Milliseconds(5);
    return fault;
  });
  for (uint64_t i = 1; i <= 4; ++i) EXPECT_THAT(router.Send(to_node, Cancel(i)), IsOk());
  loop_.Advance(absl::Milliseconds(10));
  EXPECT_THAT(at_node.sequences, ElementsAre(2, 2, 4, 3));
}

}  // namespace
}  // namespace lynx::rpc
