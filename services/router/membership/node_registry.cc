#include "services/router/membership/node_registry.h"

#include <arpa/inet.h>

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/status_macros.h"
#include "common/telemetry/log.h"
#include "services/router/membership/class_pairs.h"

namespace lynx::router {
namespace {

constexpr proto::Role kRoles[2] = {proto::ROLE_PREFILL, proto::ROLE_DECODE};

int IndexOf(proto::Role role) { return role == proto::ROLE_PREFILL ? 0 : 1; }

struct HostPort {
  std::string host;
  std::string port;
  bool numeric = false;
};

absl::StatusOr<HostPort> Parse(const std::string& address) {
  const auto malformed = [&](const char* why) {
    return absl::InvalidArgumentError(absl::StrCat("node address \"", address, "\" ", why,
                                                   "; expected host:port or [IPv6]:port"));
  };
  const size_t colon = address.rfind(':');
  if (colon == std::string::npos) return malformed("has no port");
  HostPort result{address.substr(0, colon), address.substr(colon + 1), false};
  int port = 0;
  if (!absl::SimpleAtoi(result.port, &port) || port < 1 || port > 65535) {
    return malformed("has no valid port");
  }
  if (result.host.empty()) return malformed("has no host");
  in_addr v4;
  in6_addr v6;
  if (result.host.front() == '[') {
    if (result.host.back() != ']' || result.host.size() < 3 ||
        inet_pton(AF_INET6, result.host.substr(1, result.host.size() - 2).c_str(), &v6) != 1) {
      return malformed("has no valid IPv6 address in its brackets");
    }
    result.numeric = true;
  } else if (result.host.find_first_of(":/ ") != std::string::npos) {
    return malformed("has no valid host");
  } else {
    result.numeric = inet_pton(AF_INET, result.host.c_str(), &v4) == 1;
  }
  return result;
}

telemetry::Counter Ignored(telemetry::Registry& metrics, const char* reason) {
  return metrics.AddCounter("lynx_router_ignored_messages_total",
                            "Control messages that changed nothing: late, doubled or unknown",
                            {{"reason", reason}});
}

// `pairs` is not empty; the first is where exact requests go.
void WarnOfClasses(const std::string& endpoint, const std::vector<ClassPair>& pairs) {
  const ClassPair& home = pairs.front();
  if (pairs.size() > 1) {
    telemetry::LogWarning(
        "nodes differ in their numeric class: exact requests go to one pair of classes only",
        {{"endpoint", endpoint},
         {"prefill_class", std::string(home.prefill_class)},
         {"decode_class", std::string(home.decode_class)}});
  }
  if (home.prefill_class != home.decode_class) {
    telemetry::LogWarning(
        "prefill and decode differ in their numeric class: KV of a prompt that decode has to "
        "recompute may differ in its last bits",
        {{"endpoint", endpoint},
         {"prefill_class", std::string(home.prefill_class)},
         {"decode_class", std::string(home.decode_class)}});
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<NodeRegistry>> NodeRegistry::Create(Options options, EventLoop& loop,
                                                                   rpc::Channel& channel,
                                                                   Resolver& resolver,
                                                                   telemetry::Registry& metrics) {
  std::unique_ptr<NodeRegistry> registry(
      new NodeRegistry(std::move(options), loop, channel, resolver, metrics));
  for (const proto::Role role : kRoles) {
    const auto& addresses =
        role == proto::ROLE_PREFILL ? registry->options_.prefill : registry->options_.decode;
    for (const std::string& address : addresses) {
      LYNX_ASSIGN_OR_RETURN(HostPort parsed, Parse(address));
      for (const Source& other : registry->sources_) {
        if (other.host == parsed.host && other.port == parsed.port && other.role != role) {
          return absl::InvalidArgumentError(
              absl::StrCat("node address \"", address, "\" is given as prefill and as decode"));
        }
      }
      Source source;
      source.host = parsed.host;
      source.port = parsed.port;
      source.role = role;
      if (parsed.numeric) source.next = absl::InfiniteFuture();
      registry->sources_.push_back(std::move(source));
    }
  }
  return registry;
}

NodeRegistry::Metrics::Metrics(telemetry::Registry& registry)
    : ignored_unknown_peer(Ignored(registry, "unknown_peer")),
      ignored_stale_incarnation(Ignored(registry, "stale_incarnation")),
      ignored_misaddressed(Ignored(registry, "misaddressed")) {
  for (const proto::Role role : kRoles) {
    for (int state = 0; state < kMemberStates; ++state) {
      nodes.push_back(
          registry.AddGauge("lynx_router_nodes", "Nodes as this router sees them",
                            {{"role", Name(role)}, {"state", Name(MemberState(state))}}));
    }
    heartbeat_age.push_back(registry.AddGauge(
        "lynx_control_heartbeat_age_seconds",
        "Time since the longest silent of the present nodes was heard", {{"role", Name(role)}}));
    joined.push_back(registry.AddCounter("lynx_router_nodes_joined_total",
                                         "Nodes that came or came back", {{"role", Name(role)}}));
    gone.push_back(registry.AddCounter("lynx_router_nodes_gone_total",
                                       "Nodes that left, died or were replaced",
                                       {{"role", Name(role)}}));
  }
}

NodeRegistry::NodeRegistry(Options options, EventLoop& loop, rpc::Channel& channel,
                           Resolver& resolver, telemetry::Registry& metrics)
    : options_(std::move(options)),
      loop_(loop),
      channel_(channel),
      resolver_(resolver),
      table_(options_.table),
      random_(options_.jitter_seed),
      metrics_(metrics) {}

NodeRegistry::~NodeRegistry() {
  *alive_ = false;
  loop_.CancelTimer(timer_);
  for (auto& [endpoint, connection] : connections_) HangUp(connection);
}

void NodeRegistry::Start(Listener& listener) {
  LYNX_CHECK(listener_ == nullptr);
  listener_ = &listener;
  channel_.Start(*this);
  for (Source& source : sources_) {
    if (source.next != absl::InfiniteFuture()) continue;  // A name: the first heartbeat asks.
    source.endpoints.insert(absl::StrCat(source.host, ":", source.port));
    AddEndpoint(*source.endpoints.begin(), source.role);
  }
  Heartbeat();
}

absl::Status NodeRegistry::Drain(const std::string& endpoint) {
  const Member* member = table_.FindEndpoint(endpoint);
  if (member == nullptr || member->id == 0) {
    return absl::NotFoundError(absl::StrCat(
        "no node answers at '", endpoint.substr(0, 256), "'",
        member != nullptr && !member->detail.empty() ? ": " + member->detail : std::string()));
  }
  if (!member->status.drains_on_request()) {
    return absl::UnimplementedError(
        absl::StrCat("the node at ", endpoint, " is of a version that only a signal has drain"));
  }
  proto::Envelope envelope;
  envelope.mutable_drain();
  return Send(member->id, std::move(envelope));
}

absl::Status NodeRegistry::Send(NodeId id, proto::Envelope envelope) {
  const Member* member = table_.Find(id);
  if (member == nullptr) return absl::UnavailableError("the node is gone");
  const Connection& connection = connections_.at(member->endpoint);
  envelope.set_sender(options_.incarnation);
  envelope.set_receiver(member->incarnation);
  envelope.set_membership(id);
  absl::Status sent = channel_.Send(connection.peer, std::move(envelope));
  if (sent.ok()) return sent;
  if (absl::IsResourceExhausted(sent)) {
    loop_.Post([this, id, alive = alive_] {
      if (!*alive) return;
      std::vector<NodeTable::Event> events;
      table_.OnLost(id, "does not take its messages: its queue is full", events);
      Apply(events);
      Refresh();
    });
  }
  return absl::UnavailableError(absl::StrCat(Name(member->role), " node ", member->endpoint,
                                             " cannot be reached: ", sent.message()));
}

void NodeRegistry::OnMessage(rpc::PeerId peer, proto::Envelope envelope) {
  auto it = peers_.find(peer);
  if (it == peers_.end()) {
    metrics_.ignored_unknown_peer.Increment();
    return;
  }
  if (envelope.receiver() != options_.incarnation) {
    metrics_.ignored_misaddressed.Increment();
    return;
  }
  const std::string endpoint = it->second;
  if (envelope.has_node_status()) {
    Connection& connection = connections_.at(endpoint);
    connection.ping_unanswered = false;
    connection.backoff = options_.min_redial;
    connection.redial_at = absl::InfiniteFuture();
    std::vector<NodeTable::Event> events;
    if (!table_.OnStatus(endpoint, envelope.sender(), envelope.node_status(), loop_.Now(),
                         events)) {
      metrics_.ignored_stale_incarnation.Increment();
      return;
    }
    Apply(events);
    Refresh();
    const Member* member = table_.FindEndpoint(endpoint);
    if (member != nullptr && member->id != 0) listener_->OnNodeStatus(member->id);
    return;
  }
  const Member* member = table_.FindEndpoint(endpoint);
  if (member == nullptr || member->id == 0 || member->incarnation != envelope.sender()) {
    metrics_.ignored_stale_incarnation.Increment();
    return;
  }
  listener_->OnNodeMessage(member->id, envelope);
}

void NodeRegistry::Heartbeat() {
  const absl::Time now = loop_.Now();
  for (size_t i = 0; i < sources_.size(); ++i) Resolve(i);

  ApplyTimeouts();

  std::vector<std::string> unlisted;
  for (auto& [endpoint, connection] : connections_) {
    const Member* member = table_.FindEndpoint(endpoint);
    if (member->id == 0 && !connection.listed) {
      unlisted.push_back(endpoint);
      continue;
    }
    if (now >= connection.redial_at) {
      HangUp(connection);
      Dial(endpoint, connection);
    }
    if (connection.peer != 0) Ping(connection, *member);
  }
  std::vector<NodeTable::Event> events;
  for (const std::string& endpoint : unlisted) {
    telemetry::LogInfo("node left the configuration", {{"endpoint", endpoint}});
    table_.Remove(endpoint, events);
    HangUp(connections_.at(endpoint));
    connections_.erase(endpoint);
  }
  Refresh();
  timer_ = loop_.RunAfter(options_.heartbeat_interval, [this] { Heartbeat(); });
}

void NodeRegistry::Ping(Connection& connection, const Member& member) {
  // A node that restarted does not know the incarnation it had: once an answer is missing, ask
  // whoever is there.
  proto::Envelope ping;
  proto::Ping& body = *ping.mutable_ping();
  if (member.id != 0) listener_->ListSequences(member.id, body);
  ping.set_sender(options_.incarnation);
  ping.set_receiver(connection.ping_unanswered ? 0 : member.incarnation);
  ping.set_membership(member.id);
  connection.ping_unanswered = true;
  channel_.Send(connection.peer, std::move(ping)).IgnoreError();  // Silence is what counts.
}

void NodeRegistry::ApplyTimeouts() {
  std::vector<NodeTable::Event> events;
  table_.Tick(loop_.Now(), events);
  Apply(events);
}

void NodeRegistry::OnDisconnected(rpc::PeerId peer) {
  auto it = peers_.find(peer);
  if (it == peers_.end()) return;
  const std::string endpoint = it->second;
  std::vector<NodeTable::Event> events;
  table_.OnDisconnected(endpoint, loop_.Now(), events);
  Apply(events);
  Refresh();
  const Member* member = table_.FindEndpoint(endpoint);
  if (member->id == 0) return;
  // Who lives answers this as soon as the connection is back.
  Connection& connection = connections_.at(endpoint);
  connection.ping_unanswered = true;
  Ping(connection, *member);
  loop_.RunAfter(options_.table.reconnect_grace, [this, alive = alive_] {
    if (!*alive) return;
    ApplyTimeouts();
    Refresh();
  });
}

void NodeRegistry::Resolve(size_t index) {
  Source& source = sources_[index];
  const absl::Time now = loop_.Now();
  if (source.waiting && now - source.asked >= options_.resolve_deadline) {
    source.error =
        absl::StrCat("no answer from DNS for ", absl::FormatDuration(now - source.asked));
  }
  // One question a name at a time: a resolver that hangs must not collect them.
  if (source.waiting || now < source.next) return;
  source.waiting = true;
  source.asked = now;
  resolver_.Resolve(source.host, [this, index, alive = alive_](auto addresses) {
    if (*alive) OnResolved(index, std::move(addresses));
  });
}

void NodeRegistry::OnResolved(size_t index, absl::StatusOr<std::vector<std::string>> addresses) {
  Source& source = sources_[index];
  source.waiting = false;
  source.next = loop_.Now() + Jittered(options_.resolve_interval);
  if (!addresses.ok()) {
    if (source.error != addresses.status().message()) {
      telemetry::LogWarning("name of nodes not resolved",
                            {{"role", Name(source.role)},
                             {"host", source.host},
                             {"error", std::string(addresses.status().message())}});
    }
    source.error = std::string(addresses.status().message());
    source.next = loop_.Now() + Jittered(std::min(options_.resolve_interval, options_.min_redial));
    Refresh();
    return;
  }
  source.error.clear();
  source.endpoints.clear();
  for (const std::string& address : *addresses) {
    source.endpoints.insert(absl::StrCat(address, ":", source.port));
  }
  for (const std::string& endpoint : source.endpoints) AddEndpoint(endpoint, source.role);
  for (auto& [endpoint, connection] : connections_) {
    connection.listed = std::any_of(sources_.begin(), sources_.end(), [&](const Source& s) {
      return s.endpoints.contains(endpoint);
    });
  }
  Refresh();
}

void NodeRegistry::AddEndpoint(const std::string& endpoint, proto::Role role) {
  if (!table_.Add(endpoint, role)) {
    if (table_.FindEndpoint(endpoint)->role != role) {
      telemetry::LogError("one address is given as prefill and as decode; using the first",
                          {{"endpoint", endpoint}});
    }
    return;
  }
  Connection& connection = connections_[endpoint];
  connection.backoff = options_.min_redial;
  Dial(endpoint, connection);
}

void NodeRegistry::Dial(const std::string& endpoint, Connection& connection) {
  connection.redial_at = loop_.Now() + Jittered(connection.backoff);
  connection.backoff = std::min(2 * connection.backoff, options_.max_redial);
  connection.ping_unanswered = false;
  auto peer = channel_.Connect(endpoint);
  if (!peer.ok()) {
    telemetry::LogWarning("cannot connect to node",
                          {{"endpoint", endpoint}, {"error", peer.status().ToString()}});
    return;
  }
  connection.peer = *peer;
  peers_[*peer] = endpoint;
}

void NodeRegistry::HangUp(Connection& connection) {
  if (connection.peer == 0) return;
  channel_.Disconnect(connection.peer);
  peers_.erase(connection.peer);
  connection.peer = 0;
}

void NodeRegistry::Apply(const std::vector<NodeTable::Event>& events) {
  using Event = NodeTable::Event;
  for (const Event& event : events) {
    const size_t role = static_cast<size_t>(IndexOf(event.role));
    const bool bad = (event.kind == Event::kGone && !event.drained) ||
                     event.state == MemberState::kRefused || event.state == MemberState::kSuspect;
    telemetry::Log(bad ? telemetry::LogLevel::kWarning : telemetry::LogLevel::kInfo,
                   event.kind == Event::kJoined ? "node joined" : "node changed",
                   {{"role", Name(event.role)},
                    {"endpoint", event.endpoint},
                    {"state", Name(event.state)},
                    {"detail", event.detail}});
    if (event.kind == Event::kJoined) metrics_.joined[role].Increment();
    if (event.state == MemberState::kReady && event.kind != Event::kGone) {
      const auto pairs = ClassPairs(table_, [](const Member&) { return true; });
      if (!pairs.empty()) WarnOfClasses(event.endpoint, pairs);
    }
    if (event.kind != Event::kGone) continue;
    metrics_.gone[role].Increment();
    auto it = connections_.find(event.endpoint);
    if (it != connections_.end() && table_.FindEndpoint(event.endpoint)->id == 0) {
      // Nobody took its place: what is queued on the connection is for the dead.
      HangUp(it->second);
      it->second.backoff = options_.min_redial;
      it->second.redial_at = loop_.Now() + Jittered(options_.min_redial);
    }
    listener_->OnNodeGone(
        event.id, absl::StrCat(Name(event.role), " node ", event.endpoint, " ", event.detail));
  }
}

void NodeRegistry::Refresh() {
  ready_ = table_.Ready(&reason_);
  if (!ready_) {
    for (const Source& source : sources_) {
      if (!source.error.empty()) absl::StrAppend(&reason_, "; ", source.error);
    }
  }
  int count[2][kMemberStates] = {};
  absl::Duration age[2] = {absl::ZeroDuration(), absl::ZeroDuration()};
  for (const auto& [endpoint, member] : table_.members()) {
    const int role = IndexOf(member.role);
    ++count[role][static_cast<int>(member.state)];
    if (member.id != 0) age[role] = std::max(age[role], loop_.Now() - member.last_heard);
  }
  for (size_t role = 0; role < 2; ++role) {
    for (size_t state = 0; state < kMemberStates; ++state) {
      metrics_.nodes[role * kMemberStates + state].Set(count[role][state]);
    }
    metrics_.heartbeat_age[role].Set(absl::ToDoubleSeconds(age[role]));
  }
}

absl::Duration NodeRegistry::Jittered(absl::Duration delay) {
  return delay * std::uniform_real_distribution<double>(1.0, 1.5)(random_);
}

}  // namespace lynx::router
