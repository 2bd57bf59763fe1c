// What every TransferEngine promises, on the loopback engine and on UCX over TCP.
#include "common/transfer/transfer_engine.h"

#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "common/base/mutex.h"
#include "common/concurrency/event_loop.h"
#include "common/transfer/loopback_engine.h"
#include "common/transfer/ucx_engine.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/status_matchers.h"
#include "tests/support/transfer_endpoint.h"

namespace lynx::transfer {
namespace {

using ::lynx::testing::IsOk;
using ::lynx::testing::StatusIs;
using ::lynx::testing::TransferEndpoint;
using ::testing::ElementsAre;
using ::testing::SizeIs;

std::vector<std::byte> Pattern(size_t bytes, uint32_t seed) {
  std::vector<std::byte> pattern(bytes);
  uint32_t state = seed;
  for (std::byte& b : pattern)
    b = static_cast<std::byte>((state = state * 1664525 + 1013904223) >> 24);
  return pattern;
}

class TransferEngineTest : public ::testing::TestWithParam<const char*> {
 protected:
  std::unique_ptr<TransferEndpoint> NewEndpoint(const std::string& name) {
    return std::make_unique<TransferEndpoint>(
        loops_.emplace_back(), [&](EventLoop& loop) -> std::unique_ptr<TransferEngine> {
          if (GetParam() == std::string("loopback")) {
            return LoopbackEngine::Create(fabric_, name, loop).value();
          }
          return UcxEngine::Create({.net_devices = "lo"}, loop).value();
        });
  }

  LoopbackFabric fabric_;
  std::deque<ThreadEventLoop> loops_;
};

INSTANTIATE_TEST_SUITE_P(All, TransferEngineTest, ::testing::Values("loopback", "ucx"),
                         [](const auto& param) { return std::string(param.param); });

TEST_P(TransferEngineTest, PayloadsOfAllSizesArriveIntact) {
  auto a = NewEndpoint("a");
  auto b = NewEndpoint("b");
  const PeerId to_b = a->Connect(*b);
  uint32_t seed = 1;
  for (size_t bytes : {size_t{0}, size_t{1}, size_t{8191}, size_t{8192}, size_t{65537},
                       size_t{1} << 20, (size_t{8} << 20) + 3, size_t{64} << 20}) {
    SCOPED_TRACE(bytes);
    const std::vector<std::byte> payload = Pattern(bytes, seed++);
    EXPECT_THAT(a->SendAndWait(to_b, "head-" + std::to_string(bytes), {payload}), IsOk());
    const auto arrived = b->WaitForMessages(1);
    ASSERT_THAT(arrived, SizeIs(1));
    EXPECT_EQ(arrived[0].header, "head-" + std::to_string(bytes));
    EXPECT_TRUE(arrived[0].payload == payload);
  }
}

TEST_P(TransferEngineTest, PartsArriveBackToBack) {
  auto a = NewEndpoint("a");
  auto b = NewEndpoint("b");
  const PeerId to_b = a->Connect(*b);
  for (size_t part_bytes : {size_t{3}, size_t{4096}}) {
    const std::vector<std::byte> whole = Pattern(256 * part_bytes, 9);
    std::vector<std::vector<std::byte>> parts;
    std::vector<std::span<const std::byte>> spans;
    for (size_t i = 0; i < 256; ++i) {
      parts.emplace_back(whole.begin() + static_cast<std::ptrdiff_t>(i * part_bytes),
                         whole.begin() + static_cast<std::ptrdiff_t>((i + 1) * part_bytes));
    }
    for (const auto& part : parts) spans.emplace_back(part);
    spans.emplace_back();  // An empty part is nothing.
    EXPECT_THAT(a->SendAndWait(to_b, "parts", spans), IsOk());
    const auto arrived = b->WaitForMessages(1);
    ASSERT_THAT(arrived, SizeIs(1));
    EXPECT_TRUE(arrived[0].payload == whole);
  }
}

TEST_P(TransferEngineTest, TheReceiverAnswersTheConnectionItHeardFrom) {
  auto a = NewEndpoint("a");
  auto b = NewEndpoint("b");
  const PeerId to_b = a->Connect(*b);
  ASSERT_THAT(a->SendAndWait(to_b, "ping", {}), IsOk());
  const auto ping = b->WaitForMessages(1);
  ASSERT_THAT(ping, SizeIs(1));
  const std::vector<std::byte> payload = Pattern(100000, 4);
  EXPECT_THAT(b->SendAndWait(ping[0].peer, "pong", {payload}), IsOk());
  const auto pong = a->WaitForMessages(1);
  ASSERT_THAT(pong, SizeIs(1));
  EXPECT_EQ(pong[0].peer, to_b);
  EXPECT_EQ(pong[0].header, "pong");
  EXPECT_TRUE(pong[0].payload == payload);
}

TEST_P(TransferEngineTest, ManyMessagesBothWaysAllArrive) {
  auto a = NewEndpoint("a");
  auto b = NewEndpoint("b");
  const PeerId to_b = a->Connect(*b);
  ASSERT_THAT(a->SendAndWait(to_b, "hello", {}), IsOk());
  const PeerId to_a = b->WaitForMessages(1).at(0).peer;
  const std::vector<std::byte> large = Pattern(50000, 5);
  const std::vector<std::byte> small = Pattern(100, 6);
  for (int i = 0; i < 200; ++i) {
    a->Send(to_b, std::to_string(i), {i % 2 == 0 ? large : small});
    b->Send(to_a, std::to_string(i), {i % 3 == 0 ? large : small});
  }
  for (TransferEndpoint* end : {a.get(), b.get()}) {
    const auto arrived = end->WaitForMessages(200);
    ASSERT_THAT(arrived, SizeIs(200));
    std::map<std::string, size_t> seen;
    for (const auto& message : arrived) seen[message.header] = message.payload.size();
    EXPECT_THAT(seen, SizeIs(200));
  }
  EXPECT_EQ(a->WaitForSends(), 200);
  EXPECT_EQ(b->WaitForSends(), 200);
}

TEST_P(TransferEngineTest, ARefusedPayloadIsDroppedAndItsSenderSeesSuccess) {
  auto a = NewEndpoint("a");
  auto b = NewEndpoint("b");
  const PeerId to_b = a->Connect(*b);
  b->set_refuse(true);
  EXPECT_THAT(a->SendAndWait(to_b, "large", {Pattern(1 << 20, 1)}), IsOk());
  EXPECT_THAT(a->SendAndWait(to_b, "small", {Pattern(10, 1)}), IsOk());
  EXPECT_EQ(b->WaitForRefused(2), 2);
  b->set_refuse(false);
  EXPECT_THAT(a->SendAndWait(to_b, "next", {Pattern(10, 1)}), IsOk());
  EXPECT_THAT(b->WaitForMessages(1), SizeIs(1));
}

TEST_P(TransferEngineTest, ClosingTellsTheOtherEndAndSilencesThisOne) {
  auto a = NewEndpoint("a");
  auto b = NewEndpoint("b");
  const PeerId to_b = a->Connect(*b);
  ASSERT_THAT(a->SendAndWait(to_b, "hello", {}), IsOk());
  const PeerId to_a = b->WaitForMessages(1).at(0).peer;
  a->Close(to_b);
  EXPECT_THAT(b->WaitForDown(1), ElementsAre(to_a));
  EXPECT_TRUE(absl::IsCancelled(b->last_down_reason())) << b->last_down_reason();
  EXPECT_THAT(a->SendAndWait(to_b, "more", {}), StatusIs(absl::StatusCode::kUnavailable));
  EXPECT_THAT(b->SendAndWait(to_a, "more", {}), StatusIs(absl::StatusCode::kUnavailable));
  EXPECT_THAT(a->down(), ElementsAre()) << "our own Close is no news";
}

// Whoever closes, and whatever is on the wire: all sends end, no landing stays.
TEST_P(TransferEngineTest, ClosingInMidTransferEndsSendsAndFreesLandings) {
  auto a = NewEndpoint("a");
  auto b = NewEndpoint("b");
  const std::vector<std::byte> payload = Pattern(16 << 20, 3);
  for (int round = 0; round < 6; ++round) {
    SCOPED_TRACE(round);
    const PeerId to_b = a->Connect(*b);
    for (int i = 0; i < 8; ++i) a->Send(to_b, "bulk", {payload});
    const auto first = b->WaitForMessages(1);
    ASSERT_THAT(first, SizeIs(1));
    if (round % 2 == 0) {
      a->Close(to_b);
      EXPECT_THAT(b->WaitForDown(1), ElementsAre(first[0].peer));
    } else {
      b->Close(first[0].peer);
      EXPECT_THAT(a->WaitForDown(1), ElementsAre(to_b));
    }
    EXPECT_THAT(a->send_results(), SizeIs(8));
    EXPECT_EQ(b->WaitForNoLandings(), 0);
    for (const auto& message : b->TakeMessages()) {
      EXPECT_TRUE(message.payload == payload);
    }
  }
}

TEST_P(TransferEngineTest, ConnectionsCanBeMadeAgainManyTimes) {
  auto a = NewEndpoint("a");
  auto b = NewEndpoint("b");
  const std::vector<std::byte> payload = Pattern(100000, 8);
  for (int i = 0; i < 20; ++i) {
    SCOPED_TRACE(i);
    const PeerId to_b = a->Connect(*b);
    ASSERT_THAT(a->SendAndWait(to_b, "hello", {payload}), IsOk());
    const auto arrived = b->WaitForMessages(1);
    ASSERT_THAT(arrived, SizeIs(1));
    ASSERT_THAT(b->SendAndWait(arrived[0].peer, "answer", {payload}), IsOk());
    ASSERT_THAT(a->WaitForMessages(1), SizeIs(1));
    if (i % 2 == 0) {
      a->Close(to_b);
      EXPECT_THAT(b->WaitForDown(1), ElementsAre(arrived[0].peer));
    } else {
      b->Close(arrived[0].peer);
      EXPECT_THAT(a->WaitForDown(1), ElementsAre(to_b));
    }
  }
}

TEST_P(TransferEngineTest, ARestartedEngineIsReachedAgain) {
  auto a = NewEndpoint("a");
  for (int i = 0; i < 5; ++i) {
    SCOPED_TRACE(i);
    auto b = NewEndpoint("b");
    const PeerId to_b = a->Connect(*b);
    ASSERT_THAT(a->SendAndWait(to_b, "hello", {Pattern(20000, 2)}), IsOk());
    ASSERT_THAT(b->WaitForMessages(1), SizeIs(1));
    b.reset();
    EXPECT_THAT(a->WaitForDown(1), ElementsAre(to_b));
  }
}

TEST_P(TransferEngineTest, AddressesOfAnotherKindAreRefused) {
  auto a = NewEndpoint("a");
  EXPECT_THAT(a->TryConnect(""), StatusIs(absl::StatusCode::kInvalidArgument));
  if (GetParam() == std::string("ucx")) {
    EXPECT_THAT(a->TryConnect("10.0.0.1:80"), StatusIs(absl::StatusCode::kInvalidArgument));
    std::string damaged = a->address();
    damaged.back() = static_cast<char>(damaged.back() ^ 1);
    EXPECT_THAT(a->TryConnect(damaged), StatusIs(absl::StatusCode::kInvalidArgument));
  }
}

TEST_P(TransferEngineTest, HeadersHaveALimit) {
  auto a = NewEndpoint("a");
  auto b = NewEndpoint("b");
  const PeerId to_b = a->Connect(*b);
  EXPECT_THAT(a->SendAndWait(to_b, std::string(kMaxHeaderBytes, 'h'), {Pattern(1 << 20, 3)}),
              IsOk());
  EXPECT_THAT(b->WaitForMessages(1).at(0).header, SizeIs(kMaxHeaderBytes));
  EXPECT_THAT(a->SendAndWait(to_b, std::string(kMaxHeaderBytes + 1, 'h'), {}),
              StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST_P(TransferEngineTest, DestructionWithTransfersUnderWayIsClean) {
  for (int round = 0; round < 5; ++round) {
    auto a = NewEndpoint("a");
    auto b = NewEndpoint("b");
    const PeerId to_b = a->Connect(*b);
    const std::vector<std::byte> payload = Pattern(4 << 20, 3);
    for (int i = 0; i < 10; ++i) a->Send(to_b, "bulk", {payload});
    if (round > 0) b->WaitForMessages(static_cast<size_t>(round));
    if (round % 2 == 0) {
      b.reset();
      EXPECT_EQ(a->WaitForSends(), 10);
    }
    a.reset();  // Before the payload goes.
  }
}

TEST(UcxEngineTest, NamesTheTransportInUse) {
  ThreadEventLoop loop;
  auto engine = UcxEngine::Create({.transports = "tcp", .net_devices = "lo"}, loop);
  ASSERT_THAT(engine, IsOk());
  EXPECT_EQ((*engine)->TransportName(), "tcp");
}

TEST(UcxEngineTest, TransportsThatCannotReportDeadPeersAreRefused) {
  ThreadEventLoop loop;
  EXPECT_THAT(UcxEngine::Create({.transports = "posix", .net_devices = ""}, loop),
              StatusIs(absl::StatusCode::kFailedPrecondition, ::testing::HasSubstr("posix")));
  EXPECT_FALSE(UcxEngine::Create({.transports = "nonsense", .net_devices = ""}, loop).ok());
  EXPECT_FALSE(UcxEngine::Create({.transports = "tcp", .net_devices = "nodev0"}, loop).ok());
}

TEST(UcxEngineTest, SharedMemoryIsOpenWhereDeadPeersNeedNotBeReported) {
  ThreadEventLoop loop;
  const auto open = [](EventLoop& on) {
    auto engine = UcxEngine::Create(
        {.transports = "posix", .net_devices = "", .reports_dead_peers = false}, on);
    EXPECT_THAT(engine, IsOk());
    EXPECT_EQ((*engine)->TransportName(), "shm");
    return *std::move(engine);
  };
  TransferEndpoint to(loop, open);
  TransferEndpoint from(loop, open);
  const PeerId peer = from.Connect(to);
  const std::vector<std::byte> payload = Pattern(3'000'001, 7);
  EXPECT_THAT(from.SendAndWait(peer, "large", {payload}), IsOk());
  EXPECT_THAT(from.SendAndWait(peer, "small", {std::span(payload).first(10)}), IsOk());
  const auto messages = to.WaitForMessages(2);
  ASSERT_EQ(messages.size(), 2u);
  EXPECT_EQ(messages[0].payload, payload);
  EXPECT_EQ(messages[1].payload.size(), 10u);
}

}  // namespace
}  // namespace lynx::transfer
