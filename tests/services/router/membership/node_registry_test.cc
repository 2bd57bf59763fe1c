#include "services/router/membership/node_registry.h"

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/services/router/fake_network.h"
#include "tests/support/status_matchers.h"

namespace lynx::router {
namespace {

using ::lynx::testing::IsOk;
using ::lynx::testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr Incarnation kRouter = 7;

class FakeResolver final : public Resolver {
 public:
  void Resolve(const std::string& host, Callback done) override {
    ++asked[host];
    waiting.emplace_back(host, std::move(done));
  }
  void Answer(absl::StatusOr<std::vector<std::string>> addresses) {
    ASSERT_FALSE(waiting.empty());
    auto done = std::move(waiting.front().second);
    waiting.erase(waiting.begin());
    done(std::move(addresses));
  }
  std::vector<std::pair<std::string, Callback>> waiting;
  std::map<std::string, int> asked;
};

class Recorder final : public NodeRegistry::Listener {
 public:
  void OnNodeGone(NodeId id, const std::string& why) override { gone.emplace_back(id, why); }
  void OnNodeStatus(NodeId id) override { last_status = id; }
  void OnNodeMessage(NodeId id, proto::Envelope&) override { messages.push_back(id); }
  void ListSequences(NodeId id, proto::Ping& ping) override { ping.add_sequences(1000 + id); }
  std::vector<std::pair<NodeId, std::string>> gone;
  std::vector<NodeId> messages;
  NodeId last_status = 0;
};

class NodeRegistryTest : public ::testing::Test {
 protected:
  void Make(std::vector<std::string> prefill, std::vector<std::string> decode) {
    NodeRegistry::Options options;
    options.prefill = std::move(prefill);
    options.decode = std::move(decode);
    options.incarnation = kRouter;
    auto registry = NodeRegistry::Create(options, loop_, network_, resolver_, metrics_);
    ASSERT_THAT(registry, IsOk());
    registry_ = *std::move(registry);
    registry_->Start(recorder_);
  }
  absl::Status Invalid(std::vector<std::string> prefill, std::vector<std::string> decode) {
    NodeRegistry::Options options;
    options.prefill = std::move(prefill);
    options.decode = std::move(decode);
    return NodeRegistry::Create(options, loop_, network_, resolver_, metrics_).status();
  }
  // A node that answers pings, as real ones do, only when meant (or asked who it is).
  void PlugNode(const std::string& endpoint, proto::Role role, Incarnation incarnation) {
    network_.Plug(endpoint, [this, endpoint, role, incarnation](const proto::Envelope& envelope) {
      if (envelope.receiver() != 0 && envelope.receiver() != incarnation) return;
      if (!envelope.has_ping()) return;
      proto::Envelope answer = From(incarnation);
      proto::NodeStatus& status = *answer.mutable_node_status();
      status.set_role(role);
      status.set_state(proto::NODE_STATE_READY);
      status.set_compatibility_hash("h");
      network_.Deliver(endpoint, answer);
    });
  }
  static proto::Envelope From(Incarnation incarnation) {
    proto::Envelope envelope;
    envelope.set_sender(incarnation);
    envelope.set_receiver(kRouter);
    return envelope;
  }
  bool Shows(const std::string& line) { return metrics_.Render().find(line) != std::string::npos; }

  ManualClock clock_;
  SimEventLoop loop_{clock_};
  FakeNetwork network_{loop_};
  FakeResolver resolver_;
  telemetry::Registry metrics_;
  Recorder recorder_;
  std::unique_ptr<NodeRegistry> registry_;
};

TEST_F(NodeRegistryTest, MalformedAddressesAreNamed) {
  for (const char* bad : {"", "host", "host:", "host:0", "host:65536", "host:x", ":1", "[::1:1",
                          "[x]:1", "::1:1", "a b:1"}) {
    EXPECT_THAT(Invalid({bad}, {}),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(std::string(bad))));
  }
  EXPECT_THAT(Invalid({"10.0.0.1:1"}, {"10.0.0.1:1"}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("as prefill and as decode")));
}

TEST_F(NodeRegistryTest, BecomesReadyWithinAHeartbeat) {
  PlugNode("10.0.0.1:1", proto::ROLE_PREFILL, 11);
  PlugNode("[fd00::2]:1", proto::ROLE_DECODE, 22);
  Make({"10.0.0.1:1"}, {"[fd00::2]:1"});
  EXPECT_FALSE(registry_->ready());
  EXPECT_TRUE(Shows("lynx_router_nodes{role=\"decode\",state=\"gone\"} 1")) << metrics_.Render();
  loop_.RunDue();
  EXPECT_TRUE(registry_->ready()) << registry_->not_ready_reason();
  EXPECT_TRUE(Shows("lynx_router_nodes{role=\"decode\",state=\"ready\"} 1")) << metrics_.Render();
  EXPECT_TRUE(Shows("lynx_router_nodes{role=\"decode\",state=\"gone\"} 0"));
}

TEST_F(NodeRegistryTest, ARestartIsNoticedWithinThreeHeartbeats) {
  PlugNode("10.0.0.1:1", proto::ROLE_PREFILL, 11);
  PlugNode("10.0.0.2:1", proto::ROLE_DECODE, 22);
  Make({"10.0.0.1:1"}, {"10.0.0.2:1"});
  loop_.RunDue();
  for (Incarnation incarnation = 23; incarnation < 43; ++incarnation) {
    const NodeId old_id = registry_->nodes().FindEndpoint("10.0.0.2:1")->id;
    PlugNode("10.0.0.2:1", proto::ROLE_DECODE, incarnation);
    loop_.Advance(absl::Milliseconds(1000));
    ASSERT_EQ(registry_->nodes().FindEndpoint("10.0.0.2:1")->incarnation, incarnation);
    ASSERT_EQ(recorder_.gone.back().first, old_id);
    ASSERT_TRUE(registry_->ready());
  }
  EXPECT_EQ(recorder_.gone.size(), 20u);
  EXPECT_EQ(network_.connects("10.0.0.2:1"), 1) << "a living connection is kept";
}

TEST_F(NodeRegistryTest, AHeartbeatNamesWhatItsNodeIsToKeep) {
  std::vector<uint64_t> named;
  network_.set_fault([&](const proto::Envelope& envelope) {
    for (uint64_t sequence : envelope.ping().sequences()) named.push_back(sequence);
    return std::vector<absl::Duration>{absl::ZeroDuration()};
  });
  PlugNode("10.0.0.1:1", proto::ROLE_PREFILL, 11);
  Make({"10.0.0.1:1"}, {"10.0.0.2:1"});
  loop_.RunDue();
  EXPECT_THAT(named, ::testing::IsEmpty()) << "nothing is known of a node that nobody has heard";
  loop_.Advance(absl::Milliseconds(500));
  EXPECT_THAT(named,
              ::testing::ElementsAre(1000 + registry_->nodes().FindEndpoint("10.0.0.1:1")->id));
}

// By the number a node hears that it was given up and is now found again.
TEST_F(NodeRegistryTest, MessagesCarryAMembershipThatGrowsWhenANodeIsFoundAgain) {
  std::vector<uint64_t> sent;
  network_.set_fault([&](const proto::Envelope& envelope) {
    if (envelope.sender() == kRouter) sent.push_back(envelope.membership());
    return std::vector<absl::Duration>{absl::ZeroDuration()};
  });
  const auto id = [&] { return registry_->nodes().FindEndpoint("10.0.0.1:1")->id; };
  PlugNode("10.0.0.1:1", proto::ROLE_PREFILL, 11);
  Make({"10.0.0.1:1"}, {});
  loop_.RunDue();
  EXPECT_THAT(sent, ElementsAre(0)) << "not known yet";
  const NodeId first = id();
  EXPECT_THAT(registry_->Send(first, {}), IsOk());
  loop_.Advance(absl::Milliseconds(500));
  EXPECT_THAT(sent, ElementsAre(0, first, first));

  network_.Unplug("10.0.0.1:1");
  loop_.Advance(absl::Seconds(20));
  ASSERT_EQ(id(), 0u);
  PlugNode("10.0.0.1:1", proto::ROLE_PREFILL, 11);
  loop_.Advance(absl::Seconds(60));
  EXPECT_GT(id(), first);
  EXPECT_EQ(sent.back(), id());
}

TEST_F(NodeRegistryTest, SilentEndpointsAreDialledAnewEverLessOften) {
  PlugNode("10.0.0.1:1", proto::ROLE_PREFILL, 11);
  PlugNode("10.0.0.2:1", proto::ROLE_DECODE, 22);
  Make({"10.0.0.1:1"}, {"10.0.0.2:1"});
  loop_.RunDue();
  network_.Unplug("10.0.0.2:1");
  loop_.Advance(absl::Seconds(6));
  ASSERT_EQ(recorder_.gone.size(), 1u);
  EXPECT_THAT(recorder_.gone[0].second, HasSubstr("decode node 10.0.0.2:1 has not answered for"));
  EXPECT_FALSE(registry_->ready());
  loop_.Advance(absl::Minutes(2));
  const int early = network_.connects("10.0.0.2:1");
  EXPECT_GE(early, 5);
  loop_.Advance(absl::Minutes(10));
  EXPECT_LE(network_.connects("10.0.0.2:1") - early, 21) << "30 s apart at least";
  EXPECT_LE(network_.peers(), 2u) << "old connections are closed";

  PlugNode("10.0.0.2:1", proto::ROLE_DECODE, 23);
  loop_.Advance(absl::Seconds(1));
  EXPECT_TRUE(registry_->ready()) << "a dialled connection needs no new dial to work";
}

TEST_F(NodeRegistryTest, ANodeThatEndsIsGivenUpSoonerThanOneThatIsSilent) {
  PlugNode("10.0.0.1:1", proto::ROLE_PREFILL, 11);
  PlugNode("10.0.0.2:1", proto::ROLE_DECODE, 22);
  Make({"10.0.0.1:1"}, {"10.0.0.2:1"});
  loop_.RunDue();
  ASSERT_TRUE(registry_->ready());
  network_.Unplug("10.0.0.2:1");
  network_.Break("10.0.0.2:1");
  EXPECT_FALSE(registry_->ready()) << "no new work meanwhile";
  loop_.Advance(absl::Milliseconds(499));
  EXPECT_THAT(recorder_.gone, ::testing::IsEmpty());
  loop_.Advance(absl::Milliseconds(1));
  ASSERT_EQ(recorder_.gone.size(), 1u);
  EXPECT_THAT(recorder_.gone[0].second, HasSubstr("10.0.0.2:1 closed its connection"));
}

// It does not wait for the next heartbeat to be asked.
TEST_F(NodeRegistryTest, ANodeWhoseConnectionBrokeIsAskedAtOnce) {
  PlugNode("10.0.0.1:1", proto::ROLE_PREFILL, 11);
  PlugNode("10.0.0.2:1", proto::ROLE_DECODE, 22);
  Make({"10.0.0.1:1"}, {"10.0.0.2:1"});
  loop_.RunDue();
  network_.Break("10.0.0.2:1");
  loop_.RunDue();
  EXPECT_TRUE(registry_->ready()) << registry_->not_ready_reason();
  network_.Break("10.0.0.2:1");
  PlugNode("10.0.0.2:1", proto::ROLE_DECODE, 23);  // Another process by now.
  network_.Break("10.0.0.2:1");
  loop_.RunDue();
  ASSERT_EQ(recorder_.gone.size(), 1u);
  EXPECT_EQ(registry_->nodes().FindEndpoint("10.0.0.2:1")->incarnation, 23u);
  loop_.Advance(absl::Seconds(5));
  EXPECT_EQ(recorder_.gone.size(), 1u);
  EXPECT_TRUE(registry_->ready());
}

TEST_F(NodeRegistryTest, OnlyThePresentIncarnationIsHeard) {
  PlugNode("10.0.0.1:1", proto::ROLE_DECODE, 22);
  Make({}, {"10.0.0.1:1"});
  loop_.RunDue();
  proto::Envelope grant = From(22);
  grant.mutable_grant();
  network_.Deliver("10.0.0.1:1", grant);
  loop_.RunDue();
  EXPECT_EQ(recorder_.messages.size(), 1u);
  grant.set_sender(21);
  network_.Deliver("10.0.0.1:1", grant);
  grant.set_sender(22);
  grant.set_receiver(kRouter + 1);
  network_.Deliver("10.0.0.1:1", grant);
  loop_.RunDue();
  EXPECT_EQ(recorder_.messages.size(), 1u);
  EXPECT_TRUE(Shows("ignored_messages_total{reason=\"stale_incarnation\"} 1"));
  EXPECT_TRUE(Shows("ignored_messages_total{reason=\"misaddressed\"} 1"));
}

TEST_F(NodeRegistryTest, ANodeThatTakesNoMessagesIsGivenUp) {
  PlugNode("10.0.0.1:1", proto::ROLE_DECODE, 22);
  Make({}, {"10.0.0.1:1"});
  loop_.RunDue();
  const NodeId id = recorder_.last_status;
  network_.set_send_error("10.0.0.1:1", absl::ResourceExhaustedError("queue full"));
  EXPECT_THAT(registry_->Send(id, {}), StatusIs(absl::StatusCode::kUnavailable));
  EXPECT_TRUE(recorder_.gone.empty()) << "not inside the call";
  loop_.RunDue();
  ASSERT_EQ(recorder_.gone.size(), 1u);
  EXPECT_EQ(recorder_.gone[0].first, id);
  EXPECT_THAT(registry_->Send(id, {}), StatusIs(absl::StatusCode::kUnavailable));
  network_.set_send_error("10.0.0.1:1", absl::OkStatus());
  loop_.Advance(absl::Seconds(3));
  EXPECT_NE(recorder_.last_status, id);
}

TEST_F(NodeRegistryTest, ANameStandsForAllItsAddresses) {
  PlugNode("10.0.0.1:9", proto::ROLE_DECODE, 1);
  PlugNode("10.0.0.2:9", proto::ROLE_DECODE, 2);
  Make({}, {"decode.svc:9"});
  EXPECT_THAT(registry_->not_ready_reason(), HasSubstr("no decode node is ready: none is known"));
  resolver_.Answer(std::vector<std::string>{"10.0.0.1", "10.0.0.2"});
  loop_.Advance(absl::Milliseconds(500));
  EXPECT_EQ(registry_->nodes().ReadyNodes(proto::ROLE_DECODE).size(), 2u);

  // One address leaves DNS: its node stays for as long as it answers, and no longer.
  loop_.Advance(absl::Seconds(15));
  resolver_.Answer(std::vector<std::string>{"10.0.0.2"});
  loop_.Advance(absl::Seconds(1));
  EXPECT_EQ(registry_->nodes().ReadyNodes(proto::ROLE_DECODE).size(), 2u);
  network_.Unplug("10.0.0.1:9");
  loop_.Advance(absl::Seconds(6));
  EXPECT_EQ(registry_->nodes().members().size(), 1u);
  EXPECT_EQ(network_.peers(), 1u);
}

TEST_F(NodeRegistryTest, FailedNamesChangeNothingAndAreToldWhenNotReady) {
  PlugNode("10.0.0.1:9", proto::ROLE_DECODE, 1);
  Make({}, {"decode.svc:9"});
  resolver_.Answer(std::vector<std::string>{"10.0.0.1"});
  loop_.Advance(absl::Seconds(15));
  resolver_.Answer(absl::UnavailableError("cannot resolve decode.svc: try again"));
  loop_.Advance(absl::Seconds(1));
  EXPECT_EQ(registry_->nodes().ReadyNodes(proto::ROLE_DECODE).size(), 1u);
  EXPECT_THAT(registry_->not_ready_reason(), HasSubstr("cannot resolve decode.svc"));
}

TEST_F(NodeRegistryTest, AHangingResolverGetsOneQuestion) {
  Make({}, {"decode.svc:9"});
  loop_.Advance(absl::Minutes(5));
  EXPECT_EQ(resolver_.asked["decode.svc"], 1);
  EXPECT_THAT(registry_->not_ready_reason(), HasSubstr("no answer from DNS"));
  registry_.reset();
  resolver_.Answer(std::vector<std::string>{"10.0.0.1"});  // After its end: no effect, no crash.
}

TEST_F(NodeRegistryTest, AddressesOfANameComeAndGoTwentyTimes) {
  Make({}, {"decode.svc:9"});
  for (int round = 0; round < 20; ++round) {
    PlugNode("10.0.0.1:9", proto::ROLE_DECODE, static_cast<Incarnation>(100 + round));
    ASSERT_FALSE(resolver_.waiting.empty());
    resolver_.Answer(std::vector<std::string>{"10.0.0.1"});
    loop_.Advance(absl::Seconds(16));
    ASSERT_EQ(registry_->nodes().ReadyNodes(proto::ROLE_DECODE).size(), 1u) << round;
    resolver_.Answer(std::vector<std::string>{"10.0.0.2"});
    network_.Unplug("10.0.0.1:9");
    loop_.Advance(absl::Seconds(16));
    ASSERT_EQ(registry_->nodes().ReadyNodes(proto::ROLE_DECODE).size(), 0u) << round;
  }
  EXPECT_EQ(recorder_.gone.size(), 20u);
  EXPECT_LE(network_.peers(), 1u);
}

}  // namespace
}  // namespace lynx::router
