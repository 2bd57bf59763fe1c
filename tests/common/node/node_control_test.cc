#include "common/node/node_control.h"

#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lynx::node {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr Incarnation kNode = 77;

class RecordingChannel final : public rpc::Channel {
 public:
  void Start(Handler& handler) override { handler_ = &handler; }
  absl::StatusOr<rpc::PeerId> Connect(const std::string&) override {
    return absl::UnimplementedError("a node only answers");
  }
  void Disconnect(rpc::PeerId peer) override { disconnected.push_back(peer); }
  absl::Status Send(rpc::PeerId peer, proto::Envelope envelope) override {
    sent.emplace_back(peer, std::move(envelope));
    return absl::OkStatus();
  }
  void Deliver(rpc::PeerId peer, proto::Envelope envelope) {
    handler_->OnMessage(peer, std::move(envelope));
  }

  std::vector<std::pair<rpc::PeerId, proto::Envelope>> sent;
  std::vector<rpc::PeerId> disconnected;

 private:
  Handler* handler_ = nullptr;
};

class RecordingDelegate final : public NodeControl::Delegate {
 public:
  proto::NodeStatus Status() override {
    proto::NodeStatus status;
    status.set_kv_blocks_free(5);
    return status;
  }
  void OnRequest(Incarnation router, const proto::Envelope& envelope) override {
    requests.emplace_back(router, envelope.body_case());
  }
  void OnRouterLost(Incarnation router) override { lost.push_back(router); }
  void OnRouterAlive(Incarnation router) override { alive.push_back(router); }

  std::vector<std::pair<Incarnation, proto::Envelope::BodyCase>> requests;
  std::vector<Incarnation> lost;
  std::vector<Incarnation> alive;
};

proto::Envelope Ping(Incarnation router) {
  proto::Envelope envelope;
  envelope.set_sender(router);
  envelope.mutable_ping();
  return envelope;
}

proto::Envelope Of(uint64_t membership, proto::Envelope envelope) {
  envelope.set_membership(membership);
  return envelope;
}

proto::Envelope CancelFrom(Incarnation router, Incarnation receiver) {
  proto::Envelope envelope;
  envelope.set_sender(router);
  envelope.set_receiver(receiver);
  envelope.mutable_cancel()->set_sequence(1);
  return envelope;
}

class NodeControlTest : public ::testing::Test {
 protected:
  NodeControlTest()
      : loop_(clock_),
        control_({.incarnation = kNode, .router_timeout = absl::Seconds(4), .max_routers = 2},
                 loop_, channel_, delegate_) {
    control_.Start();
  }

  ManualClock clock_;
  SimEventLoop loop_;
  RecordingChannel channel_;
  RecordingDelegate delegate_;
  NodeControl control_;
};

TEST_F(NodeControlTest, AHeartbeatIsAnsweredWithTheStatus) {
  channel_.Deliver(9, Ping(1));
  ASSERT_THAT(channel_.sent, SizeIs(1));
  const auto& [peer, envelope] = channel_.sent[0];
  EXPECT_EQ(peer, 9u);
  EXPECT_EQ(envelope.sender(), kNode);
  EXPECT_EQ(envelope.receiver(), 1u);
  EXPECT_EQ(envelope.node_status().kv_blocks_free(), 5);
}

TEST_F(NodeControlTest, RequestsForAFormerSelfAreNotServed) {
  channel_.Deliver(9, Ping(1));
  channel_.Deliver(9, CancelFrom(1, kNode + 1));
  EXPECT_THAT(delegate_.requests, IsEmpty());
  channel_.Deliver(9, CancelFrom(1, kNode));
  EXPECT_THAT(delegate_.requests, ElementsAre(std::pair(Incarnation{1}, proto::Envelope::kCancel)));
}

TEST_F(NodeControlTest, RequestsOfARouterNeverHeardAreNotServed) {
  channel_.Deliver(9, CancelFrom(3, kNode));
  EXPECT_THAT(delegate_.requests, IsEmpty());
}

TEST_F(NodeControlTest, ASilentRouterIsLostOnceAndASpeakingOneIsNot) {
  channel_.Deliver(9, Ping(1));
  channel_.Deliver(10, Ping(2));
  for (int second = 0; second < 12; ++second) {
    loop_.Advance(absl::Seconds(1));
    channel_.Deliver(10, Ping(2));
  }
  EXPECT_THAT(delegate_.lost, ElementsAre(1));
  EXPECT_THAT(channel_.disconnected, ElementsAre(9));
  EXPECT_EQ(control_.routers(), 1);
}

// A router that took the node for gone could not cancel what it gave up.
TEST_F(NodeControlTest, ARouterThatBeginsAnewHasGivenUpWhatItHad) {
  channel_.Deliver(9, Ping(1));  // Does not know this node yet.
  channel_.Deliver(9, Of(5, Ping(1)));
  channel_.Deliver(9, Of(5, CancelFrom(1, kNode)));
  channel_.Deliver(9, Ping(1));
  EXPECT_THAT(delegate_.lost, IsEmpty());
  channel_.Deliver(9, Of(6, CancelFrom(1, kNode)));
  EXPECT_THAT(delegate_.lost, ElementsAre(1));
  EXPECT_THAT(delegate_.requests, SizeIs(2)) << "its new requests are served";
  // Late words of the former membership.
  channel_.Deliver(9, Of(5, CancelFrom(1, kNode)));
  channel_.Deliver(9, Of(5, Ping(1)));
  EXPECT_THAT(delegate_.requests, SizeIs(2));
  EXPECT_THAT(delegate_.lost, SizeIs(1));
  channel_.Deliver(9, Of(7, Ping(1)));
  EXPECT_THAT(delegate_.lost, ElementsAre(1, 1));
}

TEST_F(NodeControlTest, MoreRoutersThanTheBoundAreNotTakenIn) {
  channel_.Deliver(1, Ping(1));
  channel_.Deliver(2, Ping(2));
  channel_.Deliver(3, Ping(3));
  EXPECT_EQ(control_.routers(), 2);
  EXPECT_THAT(channel_.sent, SizeIs(2));
}

TEST_F(NodeControlTest, ARouterThatReconnectsIsAnsweredOnItsNewConnection) {
  channel_.Deliver(9, Ping(1));
  channel_.Deliver(12, Ping(1));
  proto::Envelope envelope;
  envelope.mutable_terminal()->set_sequence(4);
  control_.Send(1, envelope);
  EXPECT_EQ(channel_.sent.back().first, 12u);
}

}  // namespace
}  // namespace lynx::node
