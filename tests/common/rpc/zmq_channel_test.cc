#include "common/rpc/zmq_channel.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>
#include <zmq.hpp>

#include "absl/strings/str_cat.h"
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
  // Waits for the next; 0 when none comes.
  PeerId Disconnected() {
    const auto deadline = std::chrono::steady_clock::now() + kPatience;
    MutexLock lock(mu_);
    while (disconnected_.size() == told_) {
      if (!arrived_.WaitUntil(mu_, deadline) && disconnected_.size() == told_) return 0;
    }
    return disconnected_[told_++];
  }

  Channel* echo = nullptr;  // Answers every message with itself.

 private:
  Mutex mu_;
  CondVar arrived_;
  std::vector<std::pair<PeerId, proto::Envelope>> messages_;
  std::vector<PeerId> disconnected_;
  size_t told_ = 0;  // Of them.
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

// Tells how often a handshake ended so, at either end.
MATCHER_P2(CountsHandshakes, result, count, "") {
  return ::testing::ExplainMatchResult(
      HasSubstr(absl::StrCat("lynx_control_handshakes_total{result=\"", result, "\"} ", count)),
      arg->registry.Render(), result_listener);
}

// Waits until one of these series is not 0.
bool CountsAny(End& end, const std::vector<std::string>& series) {
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  while (std::chrono::steady_clock::now() < deadline) {
    const std::string metrics = end.registry.Render();
    for (const std::string& one : series) {
      const size_t at = metrics.find(one + " ");
      if (at != std::string::npos && metrics[at + one.size() + 1] != '0') return true;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return false;
}

bool CountsAnyHandshake(End& end, const std::vector<std::string>& results) {
  std::vector<std::string> series;
  for (const std::string& result : results) {
    series.push_back("lynx_control_handshakes_total{result=\"" + result + "\"}");
  }
  return CountsAny(end, series);
}

bool CountsHandshake(End& end, const std::string& result) {
  return CountsAnyHandshake(end, {result});
}

CurveKeys Keys(const CurvePair& own, std::initializer_list<CurvePair> peers) {
  CurveKeys keys{.own = own, .peers = {}};
  for (const CurvePair& peer : peers) keys.peers.insert(peer.public_key);
  return keys;
}

std::unique_ptr<End> EchoingNode(std::optional<CurveKeys> keys) {
  auto node = std::make_unique<End>(ZmqChannel::Options{.bind = "127.0.0.1:0", .curve = keys});
  node->inbox.echo = node->channel.get();
  node->Start();
  return node;
}

std::unique_ptr<End> StartedRouter(std::optional<CurveKeys> keys) {
  auto router = std::make_unique<End>(ZmqChannel::Options{.curve = keys});
  router->Start();
  return router;
}

// Sends until an answer to one of these messages comes, as heartbeats do.
bool Reaches(End& router, PeerId peer, int tries = 200) {
  static uint64_t last = 1'000'000;
  const uint64_t first = ++last;
  for (int i = 0; i < tries; ++i) {
    if (!router.Send(peer, last++).ok()) return false;
    while (const auto answer = router.inbox.Next(std::chrono::milliseconds(100))) {
      if (answer->second.sender() >= first) return true;
    }
  }
  return false;
}

TEST(ZmqChannelCurveTest, EndsThatKnowEachOtherTalkAndEveryNodesKeyIsTried) {
  const CurvePair node_pair = NewCurvePair();
  const CurvePair router_pair = NewCurvePair();
  const auto node = EchoingNode(Keys(node_pair, {NewCurvePair(), router_pair}));
  const auto router =
      StartedRouter(Keys(router_pair, {node_pair, NewCurvePair(), NewCurvePair(), NewCurvePair()}));
  const PeerId peer = router->Connect(node->channel->endpoint());
  for (uint64_t i = 1; i <= 100; ++i) ASSERT_TRUE(router->Send(peer, i).ok());
  for (uint64_t i = 1; i <= 100; ++i) {
    const auto answer = router->inbox.Next();
    ASSERT_NE(answer, nullptr) << i;
    EXPECT_EQ(answer->second.sender(), i);
  }
  EXPECT_THAT(router, CountsHandshakes("ok", 1));
  EXPECT_THAT(router, CountsHandshakes("unauthorized", 0));
  EXPECT_THAT(node, CountsHandshakes("ok", 1));
}

TEST(ZmqChannelCurveTest, AKeyThatIsNotAllowedIsRefusedUntilItIs) {
  const CurvePair node_pair = NewCurvePair();
  const CurvePair stranger_pair = NewCurvePair();
  const auto node = EchoingNode(Keys(node_pair, {NewCurvePair()}));
  const auto stranger = StartedRouter(Keys(stranger_pair, {node_pair}));
  const PeerId peer = stranger->Connect(node->channel->endpoint());
  ASSERT_TRUE(stranger->Send(peer, 1).ok());
  EXPECT_TRUE(CountsHandshake(*node, "unauthorized"));
  EXPECT_TRUE(CountsHandshake(*stranger, "unauthorized"));
  EXPECT_EQ(node->inbox.Next(std::chrono::milliseconds(200)), nullptr);
  node->channel->SetCurveKeys(Keys(node_pair, {stranger_pair}));
  EXPECT_TRUE(Reaches(*stranger, peer));
}

TEST(ZmqChannelCurveTest, ANodeWithAnotherKeyIsNotTalkedTo) {
  const CurvePair router_pair = NewCurvePair();
  const auto node = EchoingNode(Keys(NewCurvePair(), {router_pair}));
  const auto router = StartedRouter(Keys(router_pair, {NewCurvePair(), NewCurvePair()}));
  const PeerId peer = router->Connect(node->channel->endpoint());
  ASSERT_TRUE(router->Send(peer, 1).ok());
  EXPECT_TRUE(CountsHandshake(*node, "wrong_key"));
  EXPECT_TRUE(CountsHandshake(*router, "closed"));
  EXPECT_EQ(node->inbox.Next(std::chrono::milliseconds(200)), nullptr);
}

TEST(ZmqChannelCurveTest, NeitherEndFallsBackToPlainText) {
  const CurvePair pair = NewCurvePair();
  const auto node = EchoingNode(Keys(pair, {pair}));
  const auto plain_node = EchoingNode(std::nullopt);
  const auto router = StartedRouter(Keys(pair, {pair}));
  const auto plain_router = StartedRouter(std::nullopt);
  ASSERT_TRUE(plain_router->Send(plain_router->Connect(node->channel->endpoint()), 1).ok());
  ASSERT_TRUE(router->Send(router->Connect(plain_node->channel->endpoint()), 1).ok());
  // Each end finds out by itself, or hears first that the other one has.
  for (End* end : {node.get(), plain_node.get(), router.get(), plain_router.get()}) {
    EXPECT_TRUE(CountsAnyHandshake(*end, {"mechanism", "closed"}));
    EXPECT_THAT(end, CountsHandshakes("ok", 0));
  }
  EXPECT_EQ(node->inbox.Next(std::chrono::milliseconds(200)), nullptr);
  EXPECT_EQ(plain_node->inbox.Next(std::chrono::milliseconds(200)), nullptr);
}

TEST(ZmqChannelCurveTest, APlainNodeThatComesBackWithKeysIsReached) {
  const CurvePair pair = NewCurvePair();
  auto node = EchoingNode(std::nullopt);
  const std::string endpoint = node->channel->endpoint();
  const auto router = StartedRouter(Keys(pair, {pair}));
  const PeerId peer = router->Connect(endpoint);
  ASSERT_TRUE(CountsAnyHandshake(*router, {"mechanism", "closed"}));
  node.reset();
  node = std::make_unique<End>(ZmqChannel::Options{.bind = endpoint, .curve = Keys(pair, {pair})});
  node->inbox.echo = node->channel.get();
  node->Start();
  EXPECT_TRUE(Reaches(*router, peer));
}

TEST(ZmqChannelCurveTest, NoMessageIsLostWhenTheConnectingEndChangesItsKey) {
  const CurvePair node_pair = NewCurvePair();
  CurvePair own = NewCurvePair();
  const auto node = EchoingNode(Keys(node_pair, {own}));
  const auto router = StartedRouter(Keys(own, {node_pair}));
  const PeerId peer = router->Connect(node->channel->endpoint());
  std::set<uint64_t> missing;
  uint64_t next = 1;
  const auto answer = [&] {
    const auto got = router->inbox.Next();
    ASSERT_NE(got, nullptr) << missing.size() << " are missing";
    EXPECT_EQ(got->first, peer);
    EXPECT_EQ(missing.erase(got->second.sender()), 1u);
  };
  for (int rotation = 1; rotation <= 5; ++rotation) {
    const CurvePair fresh = NewCurvePair();
    node->channel->SetCurveKeys(Keys(node_pair, {own, fresh}));
    for (int i = 0; i < 300; ++i) {
      // In the middle of the stream, with messages under way both ways.
      if (i == 100) router->channel->SetCurveKeys(Keys(fresh, {node_pair}));
      missing.insert(next);
      ASSERT_TRUE(router->Send(peer, next++).ok());
      if (missing.size() > 20) {
        ASSERT_NO_FATAL_FAILURE(answer());
      }
    }
    while (!missing.empty()) ASSERT_NO_FATAL_FAILURE(answer());
    // The old key goes only when the new one is in use, as the operator is told to.
    const auto deadline = std::chrono::steady_clock::now() + kPatience;
    while (router->registry.Render().find(
               absl::StrCat("lynx_control_handshakes_total{result=\"ok\"} ", rotation + 1)) ==
           std::string::npos) {
      ASSERT_LT(std::chrono::steady_clock::now(), deadline);
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    node->channel->SetCurveKeys(Keys(node_pair, {fresh}));
    own = fresh;
  }
  EXPECT_TRUE(Reaches(*router, peer));
}

TEST(ZmqChannelCurveTest, AConnectionWhoseKeyIsTakenOffTheListIsHeardNoMore) {
  const CurvePair node_pair = NewCurvePair();
  const CurvePair own = NewCurvePair();
  const auto node = EchoingNode(Keys(node_pair, {own}));
  const auto router = StartedRouter(Keys(own, {node_pair}));
  const PeerId peer = router->Connect(node->channel->endpoint());
  ASSERT_TRUE(Reaches(*router, peer));
  const auto heard = node->inbox.Next();
  ASSERT_NE(heard, nullptr);
  node->channel->SetCurveKeys(Keys(node_pair, {NewCurvePair()}));
  // Until the keys are in force, which they are soon, messages are heard and answered.
  const std::string dropped = "lynx_control_messages_dropped_total{reason=\"unauthorized\"}";
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  do {
    ASSERT_LT(std::chrono::steady_clock::now(), deadline);
    ASSERT_TRUE(router->Send(peer, 7).ok());
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  } while (node->registry.Render().find(dropped + " 0") != std::string::npos);
  while (router->inbox.Next(std::chrono::milliseconds(500)) != nullptr) {
  }
  ASSERT_TRUE(router->Send(peer, 7).ok());
  // Nor is it spoken to.
  EXPECT_THAT(node->Send(heard->first, 8), StatusIs(absl::StatusCode::kNotFound));
  EXPECT_EQ(router->inbox.Next(std::chrono::milliseconds(200)), nullptr);
}

TEST(ZmqChannelCurveTest, ABoundEndChangesItsKeyAndIsFoundAgain) {
  CurvePair node_pair = NewCurvePair();
  const CurvePair own = NewCurvePair();
  const auto node = EchoingNode(Keys(node_pair, {own}));
  const auto router = StartedRouter(Keys(own, {node_pair}));
  const PeerId peer = router->Connect(node->channel->endpoint());
  ASSERT_TRUE(Reaches(*router, peer));
  for (int rotation = 0; rotation < 5; ++rotation) {
    const CurvePair fresh = NewCurvePair();
    router->channel->SetCurveKeys(Keys(own, {node_pair, fresh}));
    node->channel->SetCurveKeys(Keys(fresh, {own}));
    ASSERT_EQ(router->inbox.Disconnected(), peer) << rotation;
    ASSERT_TRUE(Reaches(*router, peer)) << rotation;
    router->channel->SetCurveKeys(Keys(own, {fresh}));
    node_pair = fresh;
  }
}

TEST(ZmqChannelCurveTest, ANodeWhoseKeyIsTakenOffTheListIsLeft) {
  const CurvePair node_pair = NewCurvePair();
  const CurvePair own = NewCurvePair();
  const auto node = EchoingNode(Keys(node_pair, {own}));
  const auto router = StartedRouter(Keys(own, {node_pair}));
  const PeerId peer = router->Connect(node->channel->endpoint());
  ASSERT_TRUE(Reaches(*router, peer));
  router->channel->SetCurveKeys(Keys(own, {NewCurvePair()}));
  EXPECT_EQ(router->inbox.Disconnected(), peer);
  EXPECT_TRUE(CountsHandshake(*node, "wrong_key"));
}

// Closes every connection as soon as it is made.
class ClosingServer {
 public:
  ClosingServer() : fd_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)) {
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    auto* generic = reinterpret_cast<sockaddr*>(&address);
    EXPECT_EQ(bind(fd_, generic, size), 0);
    EXPECT_EQ(listen(fd_, 100), 0);
    EXPECT_EQ(getsockname(fd_, generic, &size), 0);
    endpoint_ = absl::StrCat("127.0.0.1:", ntohs(address.sin_port));
    thread_ = std::thread([this] {
      while (!stopping_) {
        pollfd item = {.fd = fd_, .events = POLLIN, .revents = 0};
        poll(&item, 1, 50);
        const int connection = accept4(fd_, nullptr, nullptr, SOCK_CLOEXEC);
        if (connection < 0) continue;
        ++closed_;
        close(connection);
      }
    });
  }
  ~ClosingServer() {
    stopping_ = true;
    thread_.join();
    close(fd_);
  }
  const std::string& endpoint() const { return endpoint_; }
  int closed() const { return closed_; }

 private:
  const int fd_;
  std::string endpoint_;
  std::atomic<bool> stopping_{false};
  std::atomic<int> closed_{0};
  std::thread thread_;
};

// ZeroMQ's only thread must never wait for a socket that hears of connections and is going.
TEST(ZmqChannelCurveTest, ConnectionsThatFailOneAfterTheOtherHoldUpNoOther) {
  const CurvePair own = NewCurvePair();
  const CurvePair node_pair = NewCurvePair();
  const auto node = EchoingNode(Keys(node_pair, {own}));
  // Many keys: all are tried at once, each with a connection of its own.
  CurveKeys keys = Keys(own, {node_pair});
  while (keys.peers.size() < 300) keys.peers.insert(NewCurvePair().public_key);
  const ClosingServer closing;
  const auto router = StartedRouter(keys);
  for (int i = 0; i < 8; ++i) router->Connect(closing.endpoint());
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  while (closing.closed() < 300 && std::chrono::steady_clock::now() < deadline) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  EXPECT_GE(closing.closed(), 300);
  router->channel->SetCurveKeys(Keys(own, {node_pair}));
  const PeerId peer = router->Connect(node->channel->endpoint());
  EXPECT_TRUE(Reaches(*router, peer));
}

// How many files this process may have open, while it lives.
class OpenFileLimit {
 public:
  explicit OpenFileLimit(rlim_t files) {
    EXPECT_EQ(getrlimit(RLIMIT_NOFILE, &before_), 0);
    const rlimit limit = {.rlim_cur = std::min(files, before_.rlim_max),
                          .rlim_max = before_.rlim_max};
    EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
    allowed_ = limit.rlim_cur == files;
  }
  ~OpenFileLimit() {
    for (const int fd : taken_) close(fd);
    EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &before_), 0);
  }
  bool allowed() const { return allowed_; }
  void TakeAll() {
    for (int fd = open("/dev/null", O_RDONLY); fd >= 0; fd = open("/dev/null", O_RDONLY)) {
      taken_.push_back(fd);
    }
  }

 private:
  rlimit before_ = {};
  bool allowed_ = false;
  std::vector<int> taken_;
};

TEST(ZmqChannelTest, ManyNodesAreConnectedTo) {
  const OpenFileLimit limit(4096);
  if (!limit.allowed()) GTEST_SKIP() << "needs 4096 open files";
  const auto node = EchoingNode(std::nullopt);
  const auto router = StartedRouter(std::nullopt);
  for (int i = 0; i < 400; ++i) router->Connect("127.0.0.1:1");  // Nobody listens there.
  EXPECT_TRUE(Reaches(*router, router->Connect(node->channel->endpoint())));
}

TEST(ZmqChannelTest, ANodeIsConnectedToOnceThereAreOpenFilesAgain) {
  const auto node = EchoingNode(std::nullopt);
  const auto router = StartedRouter(std::nullopt);
  PeerId peer = 0;
  {
    OpenFileLimit limit(200);
    limit.TakeAll();
    peer = router->Connect(node->channel->endpoint());
    EXPECT_FALSE(Reaches(*router, peer, 1));
  }
  EXPECT_TRUE(Reaches(*router, peer));
}

}  // namespace
}  // namespace lynx::rpc
