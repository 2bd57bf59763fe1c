#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/ids.h"
#include "common/concurrency/event_loop.h"
#include "common/rpc/channel.h"
#include "common/telemetry/metrics.h"
#include "services/router/membership/node_table.h"
#include "services/router/membership/resolver.h"

namespace lynx::router {

// Keeps in touch with the configured nodes: resolves their names, connects, sends heartbeats,
// reconnects, and tells one listener who came and went and what they said. What a node's silence or
// word means is NodeTable's to decide.
//
// A name stands for all its addresses and is asked again from time to time. A failed answer changes
// nothing. An address no longer listed is kept for as long as its node answers, since a draining
// node leaves DNS long before its streams end.
//
// All calls and callbacks are on the loop.
class NodeRegistry final : public rpc::Channel::Handler {
 public:
  struct Options {
    std::vector<std::string> prefill;  // "host:port", "1.2.3.4:port" or "[v6]:port" each.
    std::vector<std::string> decode;
    Incarnation incarnation = 0;  // This router's.
    absl::Duration heartbeat_interval = absl::Milliseconds(500);
    absl::Duration resolve_interval = absl::Seconds(10);
    absl::Duration resolve_deadline = absl::Seconds(5);  // Then the answer counts as failed.
    // How long a silent endpoint waits for its connection to be made anew: doubles from the first
    // to the second, each time up to a half longer at random, so that routers do not march in step.
    absl::Duration min_redial = absl::Seconds(1);
    absl::Duration max_redial = absl::Seconds(30);
    NodeTable::Options table;
    uint64_t jitter_seed = 0;
  };

  class Listener {
   public:
    virtual ~Listener() = default;
    // Everything `id` held is lost; the id never comes back.
    virtual void OnNodeGone(NodeId id, const std::string& why) = 0;
    // A node joined, or a node's state or load was heard.
    virtual void OnNodeStatus(NodeId id) = 0;
    // Anything but NodeStatus, from the present incarnation of a node and meant for this one.
    virtual void OnNodeMessage(NodeId id, proto::Envelope& envelope) = 0;
    // Adds what the node is to keep alive: see Ping.
    virtual void ListSequences(NodeId id, proto::Ping& ping) = 0;
  };

  // InvalidArgument: a malformed address, or one that is both prefill and decode; names it.
  // The borrowed objects outlive the registry.
  static absl::StatusOr<std::unique_ptr<NodeRegistry>> Create(Options options, EventLoop& loop,
                                                              rpc::Channel& channel,
                                                              Resolver& resolver,
                                                              telemetry::Registry& metrics);
  ~NodeRegistry() override;

  // Starts the channel and the heartbeats. Call once. `listener` outlives the registry.
  void Start(Listener& listener);

  // Sends to one life of a node; fills in sender and receiver. Unavailable: it is gone or cannot be
  // reached now; the message is not sent and the caller goes elsewhere. A node whose queue is full
  // is given up: OnNodeGone follows, not inside this call.
  absl::Status Send(NodeId id, proto::Envelope envelope);

  // Asks the node that answers at `endpoint` to drain and end. NotFound: there is none now.
  // Unimplemented: it is of a version that cannot be asked. Unavailable: as of Send().
  absl::Status Drain(const std::string& endpoint);

  const NodeTable& nodes() const { return table_; }
  bool ready() const { return ready_; }
  // When not ready, why: names nodes, states and values.
  const std::string& not_ready_reason() const { return reason_; }

  void OnMessage(rpc::PeerId peer, proto::Envelope envelope) override;
  void OnDisconnected(rpc::PeerId peer) override;

 private:
  struct Source {  // One configured name.
    std::string host;
    std::string port;
    proto::Role role = proto::ROLE_UNSPECIFIED;
    std::set<std::string> endpoints;  // As last resolved.
    absl::Time next = absl::InfinitePast();
    absl::Time asked = absl::InfinitePast();
    bool waiting = false;
    std::string error;
  };
  struct Connection {
    rpc::PeerId peer = 0;  // 0: not dialled now.
    bool ping_unanswered = false;
    bool listed = true;
    absl::Time redial_at = absl::InfinitePast();
    absl::Duration backoff;
  };

  NodeRegistry(Options options, EventLoop& loop, rpc::Channel& channel, Resolver& resolver,
               telemetry::Registry& metrics);

  void Heartbeat();
  void Ping(Connection& connection, const Member& member);
  void ApplyTimeouts();
  void Resolve(size_t source);
  void OnResolved(size_t source, absl::StatusOr<std::vector<std::string>> addresses);
  void AddEndpoint(const std::string& endpoint, proto::Role role);
  void Dial(const std::string& endpoint, Connection& connection);
  void HangUp(Connection& connection);
  void Apply(const std::vector<NodeTable::Event>& events);
  void Refresh();
  absl::Duration Jittered(absl::Duration delay);

  const Options options_;
  EventLoop& loop_;
  rpc::Channel& channel_;
  Resolver& resolver_;
  Listener* listener_ = nullptr;
  NodeTable table_;
  std::vector<Source> sources_;
  std::map<std::string, Connection> connections_;  // By endpoint; the same keys as the table.
  std::map<rpc::PeerId, std::string> peers_;
  bool ready_ = false;
  std::string reason_ = "not started";
  std::mt19937_64 random_;
  TimerId timer_ = 0;
  // Posted tasks and the resolver's answers may come after the registry's end.
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);

  struct Metrics {
    explicit Metrics(telemetry::Registry& registry);
    std::vector<telemetry::Gauge> nodes;  // [role * kMemberStates + state]
    std::vector<telemetry::Gauge> heartbeat_age;
    std::vector<telemetry::Counter> joined;
    std::vector<telemetry::Counter> gone;
    telemetry::Counter ignored_unknown_peer;
    telemetry::Counter ignored_stale_incarnation;
    telemetry::Counter ignored_misaddressed;
  };
  Metrics metrics_;
};

}  // namespace lynx::router
