#include "common/node/node_control.h"

#include <string>
#include <utility>
#include <vector>

#include "common/engine/sampling_params.h"
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
  void OnRouterAlive(Incarnation router, std::span<const uint64_t> sequences) override {
    alive.emplace_back(router, std::vector<uint64_t>(sequences.begin(), sequences.end()));
  }

  std::vector<std::pair<Incarnation, proto::Envelope::BodyCase>> requests;
  std::vector<Incarnation> lost;
  std::vector<std::pair<Incarnation, std::vector<uint64_t>>> alive;
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

TEST_F(NodeControlTest, ChangesOfLoadAreToldSoonButNotEachByItself) {
  channel_.Deliver(9, Ping(1));
  channel_.sent.clear();
  control_.LoadChanged();
  control_.LoadChanged();
  loop_.RunDue();
  EXPECT_THAT(channel_.sent, SizeIs(1)) << "the first at once";
  control_.LoadChanged();
  loop_.Advance(absl::Milliseconds(49));
  EXPECT_THAT(channel_.sent, SizeIs(1));
  control_.LoadChanged();
  loop_.Advance(absl::Milliseconds(1));
  EXPECT_THAT(channel_.sent, SizeIs(2)) << "what came meanwhile, together";
  loop_.Advance(absl::Seconds(1));
  EXPECT_THAT(channel_.sent, SizeIs(2)) << "nothing changed";
}

TEST_F(NodeControlTest, AHeartbeatNamesTheSequencesThatLiveOn) {
  proto::Envelope ping = Ping(1);
  ping.mutable_ping()->add_sequences(7);
  ping.mutable_ping()->add_sequences(5);
  channel_.Deliver(9, ping);
  ASSERT_THAT(delegate_.alive, SizeIs(1));
  EXPECT_EQ(delegate_.alive[0].first, 1u);
  EXPECT_THAT(delegate_.alive[0].second, ElementsAre(7u, 5u));
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

// A node that was frozen has not heard what its routers said meanwhile.
TEST_F(NodeControlTest, TheNodesOwnSleepIsNoRoutersSilence) {
  channel_.Deliver(9, Ping(1));
  channel_.Deliver(10, Ping(2));
  loop_.Advance(absl::Seconds(1));
  clock_.Advance(absl::Minutes(1));
  loop_.RunDue();
  EXPECT_THAT(delegate_.lost, IsEmpty());
  channel_.Deliver(10, Ping(2));  // Was waiting to be read.
  loop_.Advance(absl::Seconds(3));
  EXPECT_THAT(delegate_.lost, ElementsAre(1));
}

TEST(MaxControlMessageBytesTest, TakesTheLargestLegalRequestAndNotMuchMore) {
  constexpr int32_t kContext = 40960;
  constexpr int32_t kVocabulary = 151936;
  proto::Envelope envelope;
  envelope.set_version(UINT32_MAX);
  envelope.set_sender(UINT64_MAX);
  envelope.set_receiver(UINT64_MAX);
  envelope.set_membership(UINT64_MAX);
  proto::Prefill& prefill = *envelope.mutable_prefill();
  prefill.set_sequence(UINT64_MAX);
  prefill.set_deadline_ms(UINT32_MAX);
  for (int32_t i = 0; i < kContext; ++i) prefill.add_tokens(kVocabulary - 1);
  proto::SamplingParams& sampling = *prefill.mutable_sampling();
  for (int32_t i = 0; i < kVocabulary; ++i) {
    proto::LogitBias& bias = *sampling.add_logit_bias();
    bias.set_token(i);
    bias.set_bias(1);
  }
  for (int32_t i = 0; i < 1024; ++i) sampling.add_stop_token_ids(kVocabulary - 1);
  sampling.set_seed(UINT64_MAX);
  sampling.set_top_logprobs(engine::kNoLogprobs);
  prefill.mutable_grant()->set_transfer_address(std::string(1024, 'x'));
  const size_t limit = MaxControlMessageBytes(kContext, kVocabulary);
  EXPECT_LE(envelope.ByteSizeLong(), limit);
  EXPECT_GE(envelope.ByteSizeLong() * 3 / 2, limit);
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

// A membership that the router never had, as a damaged message may say, costs one timeout.
TEST_F(NodeControlTest, ARouterIsFollowedAgainAfterAMembershipThatItNeverHad) {
  channel_.Deliver(9, Of(5, Ping(1)));
  channel_.Deliver(9, Of(900, CancelFrom(1, kNode)));
  EXPECT_THAT(delegate_.lost, ElementsAre(1));
  for (int second = 0; second < 6; ++second) {
    loop_.Advance(absl::Seconds(1));
    channel_.Deliver(9, Of(5, Ping(1)));
    channel_.Deliver(9, Ping(1));  // Took the node for gone and asks who is there.
  }
  EXPECT_THAT(delegate_.lost, ElementsAre(1, 1));
  channel_.Deliver(9, Of(5, CancelFrom(1, kNode)));
  EXPECT_THAT(delegate_.requests, SizeIs(2)) << "it is served again";
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
