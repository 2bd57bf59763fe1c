#include "common/rpc/zmq_channel.h"

#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>
#include <zmq.hpp>

#include "common/base/mutex.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/status_matchers.h"

namespace lynx::rpc {
namespace {

using ::lynx::testing::StatusIs;
using ::testing::HasSubstr;

constexpr auto kPatience = std::chrono::seconds(20);  // Matters only when a test fails.

// Collects messages; tests wait for the next one.
class Inbox final : public Channel::Handler {
 public:
  void OnMessage(PeerId peer, proto::Envelope envelope) override {
    if (echo != nullptr) echo->Send(peer, envelope).IgnoreError();
    MutexLock lock(mu_);
    messages_.emplace_back(peer, std::move(envelope));
    arrived_.NotifyAll();
  }
  // Null when none comes within `patience`.
  std::unique_ptr<std::pair<PeerId, proto::Envelope>> Next(
      std::chrono::milliseconds patience = kPatience) {
    const auto deadline = std::chrono::steady_clock::now() + patience;
    MutexLock lock(mu_);
    while (messages_.size() == read_) {
      if (!arrived_.WaitUntil(mu_, deadline) && messages_.size() == read_) return nullptr;
    }
    return std::make_unique<std::pair<PeerId, proto::Envelope>>(messages_[read_++]);
  }

  void OnDisconnected(PeerId peer) override {
    MutexLock lock(mu_);
    disconnected_.push_back(peer);
    arrived_.NotifyAll();
  }
  // Waits for the first; 0 when none comes.
  PeerId Disconnected() {
    const auto deadline = std::chrono::steady_clock::now() + kPatience;
    MutexLock lock(mu_);
    while (disconnected_.empty()) {
      if (!arrived_.WaitUntil(mu_, deadline) && disconnected_.empty()) return 0;
    }
    return disconnected_.front();
  }

  Channel* echo = nullptr;  // Answers every message with itself.

 private:
  Mutex mu_;
  CondVar arrived_;
  std::vector<std::pair<PeerId, proto::Envelope>> messages_;
  std::vector<PeerId> disconnected_;
  size_t read_ = 0;
};

// A channel with its loop, inbox and registry.
struct End {
  explicit End(const ZmqChannel::Options& options) {
    auto created = ZmqChannel::Create(options, loop, registry);
    EXPECT_TRUE(created.ok()) << created.status();
    channel = *std::move(created);
  }
  ~End() {
    loop.Stop();
    channel.reset();
  }
  void Start() {
    loop.RunAndWait([this] { channel->Start(inbox); });
  }
  PeerId Connect(const std::string& endpoint) {
    PeerId peer = 0;
    loop.RunAndWait([&] { peer = *channel->Connect(endpoint); });
    return peer;
  }
  absl::Status Send(PeerId peer, uint64_t sender) {
    absl::Status status;
    loop.RunAndWait([&] {
      proto::Envelope envelope;
      envelope.set_sender(sender);
      envelope.mutable_ping();
      status = channel->Send(peer, std::move(envelope));
    });
    return status;
  }

  telemetry::Registry registry;
  ThreadEventLoop loop;
  Inbox inbox;
  std::unique_ptr<ZmqChannel> channel;
};

TEST(ZmqChannelTest, MessagesOfAPeerArriveInOrderAndAnswersFindTheirWay) {
  End node({.bind = "127.0.0.1:0"});
  node.inbox.echo = node.channel.get();
  node.Start();
  End router({});
  router.Start();
  const PeerId peer = router.Connect(node.channel->endpoint());
  for (uint64_t i = 1; i <= 500; ++i) ASSERT_TRUE(router.Send(peer, i).ok());
  for (uint64_t i = 1; i <= 500; ++i) {
    auto answer = router.inbox.Next();
    ASSERT_NE(answer, nullptr) << i;
    EXPECT_EQ(answer->first, peer);
    EXPECT_EQ(answer->second.sender(), i);
    EXPECT_EQ(answer->second.version(), kProtocolVersion);
  }
}

TEST(ZmqChannelTest, ATakenPortIsNamed) {
  End node({.bind = "127.0.0.1:0"});
  telemetry::Registry registry;
  ThreadEventLoop loop;
  EXPECT_THAT(ZmqChannel::Create({.bind = node.channel->endpoint()}, loop, registry),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr(node.channel->endpoint())));
  EXPECT_THAT(ZmqChannel::Create({.bind = "nonsense"}, loop, registry),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("nonsense")));
}

TEST(ZmqChannelTest, ANodeThatComesBackOnItsPortIsReachedByTheSamePeer) {
  auto node = std::make_unique<End>(ZmqChannel::Options{.bind = "127.0.0.1:0"});
  node->Start();
  const std::string endpoint = node->channel->endpoint();
  End router({});
  router.Start();
  const PeerId peer = router.Connect(endpoint);
  ASSERT_TRUE(router.Send(peer, 1).ok());
  ASSERT_NE(node->inbox.Next(), nullptr);
  node.reset();
  node = std::make_unique<End>(ZmqChannel::Options{.bind = endpoint});
  node->Start();
  // A message sent while the connection was breaking may be lost; heartbeats are repeated.
  std::unique_ptr<std::pair<PeerId, proto::Envelope>> message;
  for (uint64_t i = 2; message == nullptr && i < 200; ++i) {
    ASSERT_TRUE(router.Send(peer, i).ok());
    message = node->inbox.Next(std::chrono::milliseconds(100));
  }
  EXPECT_NE(message, nullptr);
}

TEST(ZmqChannelTest, WhoConnectedHearsThatTheOtherEndIsGone) {
  auto gone = std::make_unique<End>(ZmqChannel::Options{.bind = "127.0.0.1:0"});
  End stays({.bind = "127.0.0.1:0"});
  End router({});
  for (End* node : {gone.get(), &stays}) {
    node->inbox.echo = node->channel.get();
    node->Start();
  }
  router.Start();
  const PeerId to_stays = router.Connect(stays.channel->endpoint());
  const PeerId to_gone = router.Connect(gone->channel->endpoint());
  for (const PeerId peer : {to_stays, to_gone}) {
    ASSERT_TRUE(router.Send(peer, 1).ok());
    ASSERT_NE(router.inbox.Next(), nullptr);
  }
  gone.reset();
  EXPECT_EQ(router.inbox.Disconnected(), to_gone);
}

TEST(ZmqChannelTest, AQueueThatNobodyEmptiesIsBounded) {
  End router({.max_queued = 10});
  router.Start();
  const PeerId peer = router.Connect("127.0.0.1:1");  // Nobody listens there.
  for (int i = 0; i < 10; ++i) ASSERT_TRUE(router.Send(peer, 1).ok());
  EXPECT_THAT(router.Send(peer, 1), StatusIs(absl::StatusCode::kResourceExhausted));
  router.loop.RunAndWait([&] { router.channel->Disconnect(peer); });
  EXPECT_THAT(router.Send(peer, 1), StatusIs(absl::StatusCode::kNotFound));
}

TEST(ZmqChannelTest, WhatIsNotOursIsDroppedAndCountedAndTheNextMessageArrives) {
  End node({.bind = "127.0.0.1:0", .max_message_bytes = 1000});
  node.Start();
  zmq::context_t context;
  zmq::socket_t stranger(context, zmq::socket_type::dealer);
  stranger.set(zmq::sockopt::linger, 0);
  stranger.connect("tcp://" + node.channel->endpoint());
  proto::Envelope good;
  good.set_version(kProtocolVersion);
  good.set_sender(5);
  good.mutable_ping();
  proto::Envelope foreign = good;
  foreign.set_version(kProtocolVersion + 1);
  const auto send = [&](const std::string& bytes) {
    ASSERT_TRUE(stranger.send(zmq::buffer(bytes), zmq::send_flags::none).has_value());
  };
  send("\xff\xff not protobuf");
  send(foreign.SerializeAsString());
  send(std::string(1500, 'x'));
  send(std::string(900, '\x0b'));  // Groups of an unknown field, nested 900 deep.
  ASSERT_TRUE(stranger.send(zmq::str_buffer("one"), zmq::send_flags::sndmore).has_value());
  send("two");
  send(good.SerializeAsString());
  auto message = node.inbox.Next();
  ASSERT_NE(message, nullptr);
  EXPECT_EQ(message->second.sender(), 5u);
  const std::string metrics = node.registry.Render();
  const std::string dropped = "lynx_control_messages_dropped_total";
  EXPECT_THAT(metrics, HasSubstr(dropped + "{reason=\"malformed\"} 3"));
  EXPECT_THAT(metrics, HasSubstr(dropped + "{reason=\"version\"} 1"));
  EXPECT_THAT(metrics, HasSubstr(dropped + "{reason=\"too_large\"} 1"));
}

}  // namespace
}  // namespace lynx::rpc
