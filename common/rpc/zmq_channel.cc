#include "common/rpc/zmq_channel.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <deque>
#include <map>
#include <optional>
#include <thread>
#include <utility>
#include <vector>
#include <zmq.hpp>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/mutex.h"
#include "common/rpc/envelope.h"
#include "common/telemetry/log.h"

namespace lynx::rpc {
namespace {

constexpr int kLingerMs = 200;

// How long the connection before one with new keys is still read.
constexpr auto kFormerLinkTime = std::chrono::seconds(2);
// Between tries to reach a node that refuses us, or to bind anew.
constexpr auto kRetryInterval = std::chrono::seconds(1);
// What ZeroMQ counts with at most. Three for a connection of ours, six while keys change; the limit
// of open files comes first.
constexpr int kMaxSockets = 65'000;
// Between lines of one kind about connections that do not come about.
constexpr auto kLogInterval = std::chrono::seconds(30);

// Options of every socket.
void Configure(zmq::socket_t& socket, size_t max_queued, size_t max_message_bytes) {
  socket.set(zmq::sockopt::linger, kLingerMs);
  socket.set(zmq::sockopt::ipv6, true);
  socket.set(zmq::sockopt::sndhwm, static_cast<int>(max_queued));
  socket.set(zmq::sockopt::rcvhwm, static_cast<int>(max_queued));
  // One more than ours, so that a message just over the limit is counted and not the connection
  // cut.
  socket.set(zmq::sockopt::maxmsgsize, static_cast<int64_t>(max_message_bytes) + 1024);
  socket.set(zmq::sockopt::handshake_ivl, 5000);
  // ZeroMQ's own heartbeats: a half-open connection is closed and made anew.
  socket.set(zmq::sockopt::heartbeat_ivl, 2000);
  socket.set(zmq::sockopt::heartbeat_timeout, 6000);
}

// How a connection's handshake ended.
enum class Handshake { kOk, kUnauthorized, kWrongKey, kMechanism, kClosed, kMalformed };

constexpr std::pair<Handshake, const char*> kHandshakes[] = {
    {Handshake::kOk, "ok"},
    {Handshake::kUnauthorized, "unauthorized"},
    {Handshake::kWrongKey, "wrong_key"},
    {Handshake::kMechanism, "mechanism"},
    {Handshake::kClosed, "closed"},
    {Handshake::kMalformed, "malformed"},
};

constexpr int kMonitored = ZMQ_EVENT_DISCONNECTED | ZMQ_EVENT_HANDSHAKE_SUCCEEDED |
                           ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL |
                           ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL | ZMQ_EVENT_HANDSHAKE_FAILED_AUTH;

// Nothing: the event is not about the end of a handshake.
std::optional<Handshake> HandshakeOf(int event, uint32_t value) {
  switch (event) {
    case ZMQ_EVENT_HANDSHAKE_SUCCEEDED:
      return Handshake::kOk;
    case ZMQ_EVENT_HANDSHAKE_FAILED_AUTH:
      return Handshake::kUnauthorized;
    case ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL:
      return Handshake::kClosed;
    case ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL:
      if (value == ZMQ_PROTOCOL_ERROR_ZMTP_CRYPTOGRAPHIC) return Handshake::kWrongKey;
      if (value == ZMQ_PROTOCOL_ERROR_ZMTP_MECHANISM_MISMATCH) return Handshake::kMechanism;
      return Handshake::kMalformed;
    default:
      return std::nullopt;
  }
}

// Why this end thinks that its connection to a node was not made.
const char* ReasonAtRouter(Handshake result, bool curve) {
  switch (result) {
    case Handshake::kUnauthorized:
      return "the node does not know the public key of this router";
    case Handshake::kMechanism:
      return curve ? "the node speaks without CURVE, and this router only with it"
                   : "the node asks for CURVE, and this router has no keys";
    case Handshake::kClosed:
      return curve
                 ? "the node closed the connection: its key is probably none of those allowed, or "
                   "it speaks without CURVE"
                 : "the node closed the connection: it may ask for CURVE";
    default:
      return "the node speaks another protocol";
  }
}

const char* ReasonAtNode(Handshake result, bool curve) {
  switch (result) {
    case Handshake::kUnauthorized:
      return "its public key is not among those allowed";
    case Handshake::kWrongKey:
      return "it takes another public key for this node's";
    case Handshake::kMechanism:
      return curve ? "it speaks without CURVE" : "it asks for CURVE, and this node has no keys";
    case Handshake::kClosed:
      return curve ? "it closed the connection: it may speak without CURVE"
                   : "it closed the connection: it may ask for CURVE";
    default:
      return "it speaks another protocol";
  }
}

bool IsLoopback(const std::string& address) {
  return address.starts_with("127.") || address.starts_with("[::1]") ||
         address.starts_with("localhost:");
}

std::string ToZ85(const zmq::message_t& key) {
  std::array<char, 41> text;
  if (key.size() != 32 || zmq_z85_encode(text.data(), key.data<uint8_t>(), key.size()) == nullptr) {
    return {};
  }
  return text.data();
}

// Lets one line of a kind through, then none for a while.
class LogLimit {
 public:
  bool Admit(std::chrono::steady_clock::time_point now) {
    if (now < next_) return false;
    next_ = now + kLogInterval;
    return true;
  }

 private:
  std::chrono::steady_clock::time_point next_ = {};
};

zmq::context_t NewContext() {
  zmq::context_t context;
  context.set(zmq::ctxopt::max_sockets, kMaxSockets);
  return context;
}

// Before the socket goes that Monitor() gave for `of`: on its only thread ZeroMQ would wait for
// ever to send an event to one that is closing. Does not wait itself.
void StopMonitor(zmq::socket_t& of) { zmq_socket_monitor(of.handle(), nullptr, 0); }

bool IsHostPort(const std::string& text) {
  const size_t colon = text.rfind(':');
  return colon != std::string::npos && colon > 0 && colon + 1 < text.size() &&
         text.find_first_not_of("0123456789", colon + 1) == std::string::npos;
}

}  // namespace

// What the loop and the I/O thread share. Fields without a lock belong to the loop.
struct ZmqChannel::Shared {
  Shared(EventLoop& l, telemetry::Registry& registry) : loop(l), metrics(registry) {
    for (const auto& [result, name] : kHandshakes) {
      handshakes.emplace(result, registry.AddCounter("lynx_control_handshakes_total",
                                                     "Connections of the control plane by how "
                                                     "their handshake ended.",
                                                     {{"result", name}}));
    }
  }

  EventLoop& loop;
  ChannelMetrics metrics;
  std::map<Handshake, telemetry::Counter> handshakes;
  Handler* handler = nullptr;  // Null before Start and once the channel is gone.
  // Messages of a peer under way to its socket. A peer that wrote to us appears with its first
  // message.
  std::map<PeerId, std::shared_ptr<std::atomic<size_t>>> peers;
  std::atomic<size_t> received{0};  // On their way to the handler.
  std::atomic<PeerId> next_peer{1};
};

// Owns the sockets and the thread that uses them.
class ZmqChannel::Io {
 public:
  Io(const Options& options, std::shared_ptr<Shared> shared)
      : options_(options),
        shared_(std::move(shared)),
        wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
        curve_(options.curve),
        zap_(context_, zmq::socket_type::rep),
        router_(context_, zmq::socket_type::router),
        router_monitor_(Monitor(router_)) {
    LYNX_CHECK(wake_ >= 0);
    // ZeroMQ asks here whether a key that was shown may connect. Bound whether there are keys or
    // not.
    zap_.set(zmq::sockopt::linger, 0);
    zap_.bind("inproc://zeromq.zap.01");
  }

  ~Io() {
    if (thread_.joinable()) {
      stopping_ = true;
      Wake();
      thread_.join();
    }
    StopMonitor(router_);
    close(wake_);
  }

  absl::StatusOr<std::string> Bind(const std::string& address) {
    Configure(router_, options_.max_queued, options_.max_message_bytes);
    router_.set(zmq::sockopt::router_mandatory, true);
    if (address.empty()) return std::string();
    if (!IsHostPort(address)) {
      return absl::InvalidArgumentError(absl::StrCat("'", address, "' is not address:port"));
    }
    if (!curve_.has_value() && !IsLoopback(address)) {
      telemetry::LogWarning(
          "the control plane is open: whoever reaches its port can use the model and read what is "
          "asked; give --control-key and --control-peers, or keep its network to yourself",
          {{"control", address}});
    }
    try {
      ShowKey();
      router_.bind("tcp://" + address);
      bound_ = router_.get(zmq::sockopt::last_endpoint);
      return absl::StrCat(address.substr(0, address.rfind(':')), bound_.substr(bound_.rfind(':')));
    } catch (const zmq::error_t& error) {
      return absl::UnavailableError(
          absl::StrCat("cannot bind the control plane to ", address, ": ", error.what()));
    }
  }

  void Run() {
    thread_ = std::thread([this] { Loop(); });
  }

  // Any thread. Runs on the I/O thread, in order.
  void Connect(PeerId peer, std::string endpoint) {
    Enqueue({.kind = Command::kConnect, .peer = peer, .bytes = std::move(endpoint)});
  }
  void Disconnect(PeerId peer) { Enqueue({.kind = Command::kDisconnect, .peer = peer}); }
  void SetCurveKeys(CurveKeys keys) LYNX_EXCLUDES(mu_) {
    {
      MutexLock lock(mu_);
      new_curve_ = std::move(keys);
    }
    Wake();
  }
  void Send(PeerId peer, std::string bytes, std::shared_ptr<std::atomic<size_t>> queued) {
    Enqueue({.kind = Command::kSend,
             .peer = peer,
             .bytes = std::move(bytes),
             .slot = std::shared_ptr<void>(nullptr, [queued](void*) { queued->fetch_sub(1); })});
  }

 private:
  struct Command {
    enum Kind { kConnect, kDisconnect, kSend } kind = kSend;
    PeerId peer = 0;
    std::string bytes = {};
    std::shared_ptr<void> slot = nullptr;  // Counts the message as under way while it lives.
  };
  using TimePoint = std::chrono::steady_clock::time_point;
  // A connection of ours, which ZeroMQ makes and remakes.
  struct Link {
    Link(zmq::socket_t socket, std::string key)
        : dealer(std::move(socket)), node_key(std::move(key)) {}
    Link(const Link&) = delete;
    Link& operator=(const Link&) = delete;
    ~Link() { StopMonitor(dealer); }

    zmq::socket_t dealer;
    zmq::socket_t monitor;  // Says what becomes of it.
    std::string node_key;   // What the node has to have; empty: plain.
    bool up = false;        // The handshake has succeeded, and the connection is there.
  };
  struct Peer {
    // Of a peer we connected to. Messages go to `link`, and come by all three.
    std::string endpoint = {};
    std::unique_ptr<Link> former = {};  // What `link` was before there were new keys, for a while.
    TimePoint former_until = {};
    std::unique_ptr<Link> link = {};
    std::unique_ptr<Link> trial = {};      // Becomes `link` when its handshake succeeds.
    TimePoint dial_at = TimePoint::max();  // When there is to be a trial.
    std::string node_key = {};             // Of the trial before, or of `link`.
    size_t failures = 0;                   // Since one succeeded.
    std::optional<Handshake> told = {};    // The failure that the log has.
    LogLimit log = {};

    std::string routing_id = {};  // Of a peer that wrote to us,
    std::string user = {};        // and its public key; empty: plain.
    uint64_t last_heard = 0;
    std::deque<Command> waiting = {};  // What the socket did not take yet.
  };
  // A socket that was polled, and where its turn is in `items`.
  struct Polled {
    PeerId peer;
    Link* link;
    size_t item;
  };

  void Enqueue(Command command) LYNX_EXCLUDES(mu_) {
    {
      MutexLock lock(mu_);
      commands_.push_back(std::move(command));
    }
    Wake();
  }

  void Wake() {
    const uint64_t one = 1;
    // Fails only when the counter is full, and then the thread is awake anyway.
    [[maybe_unused]] const ssize_t written = write(wake_, &one, sizeof(one));
  }

  static TimePoint Now() { return std::chrono::steady_clock::now(); }

  void Loop() {
    while (!stopping_) {
      const bool room = shared_->received.load() < options_.max_received;
      const short readable = static_cast<short>(room ? ZMQ_POLLIN : 0);
      std::vector<zmq::pollitem_t> items = {{nullptr, wake_, ZMQ_POLLIN, 0},
                                            {zap_.handle(), 0, ZMQ_POLLIN, 0},
                                            {router_monitor_.handle(), 0, ZMQ_POLLIN, 0},
                                            {router_.handle(), 0, readable, 0}};
      std::vector<Polled> polled;
      bool blocked = false;
      TimePoint next = rebind_at_;
      for (auto& [id, peer] : peers_) {
        blocked = blocked || !peer.waiting.empty();
        next = std::min({next, peer.dial_at, peer.former ? peer.former_until : TimePoint::max()});
        // In this order: what a trial's events do to the others comes after theirs.
        for (Link* link : {peer.former.get(), peer.link.get(), peer.trial.get()}) {
          if (link == nullptr) continue;
          polled.push_back({id, link, items.size()});
          const bool sends = link == peer.link.get() && !peer.waiting.empty();
          items.push_back({link->dealer.handle(), 0,
                           static_cast<short>(readable | (sends ? ZMQ_POLLOUT : 0)), 0});
          items.push_back({link->monitor.handle(), 0, ZMQ_POLLIN, 0});
        }
      }
      // A ROUTER has no event for "this one peer takes messages again": look again soon. The same
      // when the handler is behind.
      auto wait = std::chrono::milliseconds(blocked || !room ? 5 : 1000);
      if (next != TimePoint::max()) {
        const auto left = std::chrono::ceil<std::chrono::milliseconds>(next - Now());
        wait = std::clamp(left, std::chrono::milliseconds(0), wait);
      }
      zmq::poll(items, wait);
      if ((items[0].revents & ZMQ_POLLIN) != 0) {
        uint64_t count = 0;
        [[maybe_unused]] const ssize_t got = read(wake_, &count, sizeof(count));
      }
      if ((items[1].revents & ZMQ_POLLIN) != 0) AnswerZap();
      if ((items[2].revents & ZMQ_POLLIN) != 0) ReadRouterMonitor();
      if ((items[3].revents & ZMQ_POLLIN) != 0) ReadRouter();
      for (const Polled& socket : polled) {
        if ((items[socket.item].revents & ZMQ_POLLIN) != 0) {
          ReadDealer(socket.peer, socket.link->dealer);
        }
        if ((items[socket.item + 1].revents & ZMQ_POLLIN) != 0) {
          ReadLinkMonitor(socket.peer, *socket.link);
        }
      }
      RunCommands();
      Tend();
      for (auto& [id, peer] : peers_) Flush(peer);
      ForgetGone();
    }
    RunCommands();
    for (auto& [id, peer] : peers_) Flush(peer);
    peers_.clear();
  }

  void RunCommands() LYNX_EXCLUDES(mu_) {
    std::vector<Command> commands;
    std::optional<CurveKeys> new_curve;
    {
      MutexLock lock(mu_);
      commands.swap(commands_);
      new_curve.swap(new_curve_);
    }
    if (new_curve.has_value()) Adopt(*std::move(new_curve));
    for (Command& command : commands) {
      switch (command.kind) {
        case Command::kConnect:
          peers_[command.peer] = {.endpoint = command.bytes, .dial_at = Now()};
          break;
        case Command::kDisconnect:
          Forget(command.peer);
          break;
        case Command::kSend:
          if (auto it = peers_.find(command.peer); it != peers_.end()) {
            it->second.waiting.push_back(std::move(command));
          }
      }
    }
  }

  // What is due by now.
  void Tend() {
    const TimePoint now = Now();
    if (rebind_at_ <= now) Rebind();
    for (auto& [id, peer] : peers_) {
      if (peer.former != nullptr && peer.former_until <= now) peer.former.reset();
      if (peer.dial_at <= now) Dial(peer);
    }
  }

  // New keys. A connection with a key of ours that has been replaced is read on until there is one
  // with the new key.
  void Adopt(CurveKeys keys) {
    LYNX_CHECK(curve_.has_value());
    const bool new_own = keys.own.secret_key != curve_->own.secret_key;
    curve_ = std::move(keys);
    std::vector<PeerId> strangers;
    for (auto& [id, peer] : peers_) {
      if (!peer.user.empty() && !curve_->peers.contains(peer.user)) strangers.push_back(id);
      if (peer.endpoint.empty()) continue;
      for (std::unique_ptr<Link>* link : {&peer.former, &peer.link, &peer.trial}) {
        if (*link == nullptr || curve_->peers.contains((*link)->node_key)) continue;
        if (link == &peer.link && (*link)->up) TellDisconnected(id);
        link->reset();
      }
      if (new_own || (peer.link == nullptr && peer.trial == nullptr)) peer.dial_at = Now();
    }
    for (const PeerId id : strangers) ForgetInbound(id);
    if (new_own && !bound_.empty()) {
      // Cuts the connections there are; who made them comes again, with the new key.
      if (rebind_at_ == TimePoint::max()) router_.unbind(bound_);
      rebind_at_ = Now();
    }
  }

  // The old listener closes in the background, so this may take several tries.
  void Rebind() {
    try {
      ShowKey();
      router_.bind(bound_);
      rebind_at_ = TimePoint::max();
      telemetry::LogInfo("the control plane is bound with the new key", {{"control", bound_}});
    } catch (const zmq::error_t& error) {
      const bool closing = error.num() == EADDRINUSE;
      rebind_at_ = Now() + (closing ? std::chrono::milliseconds(10) : kRetryInterval);
      if (!closing || rebind_log_.Admit(Now())) {
        telemetry::LogWarning("the control plane is not bound with the new key yet",
                              {{"control", bound_}, {"error", error.what()}});
      }
    }
  }

  void ShowKey() {
    if (!curve_.has_value()) return;
    router_.set(zmq::sockopt::zap_domain, "lynx");
    router_.set(zmq::sockopt::curve_server, true);
    router_.set(zmq::sockopt::curve_secretkey, curve_->own.secret_key);
  }

  // A socket of ours that says what becomes of the connections of `of`, until StopMonitor(of).
  // Throws zmq::error_t.
  zmq::socket_t Monitor(zmq::socket_t& of) {
    const std::string name = absl::StrCat("inproc://monitor-", next_monitor_++);
    if (zmq_socket_monitor(of.handle(), name.c_str(), kMonitored) != 0) throw zmq::error_t();
    zmq::socket_t monitor(context_, zmq::socket_type::pair);
    monitor.set(zmq::sockopt::linger, 0);
    // No limit: ZeroMQ's thread would wait at it. Each turn of the loop reads all there are.
    monitor.set(zmq::sockopt::rcvhwm, 0);
    monitor.connect(name);
    return monitor;
  }

  // A trial in the place of the one there may be.
  void Dial(Peer& peer) {
    peer.dial_at = TimePoint::max();
    peer.trial.reset();
    try {
      peer.trial = NewLink(peer);
    } catch (const zmq::error_t& error) {
      const TimePoint now = Now();
      peer.dial_at = now + kRetryInterval;
      if (!dial_log_.Admit(now)) return;
      telemetry::LogWarning(
          "no socket for a control connection; see this process's limit of open files",
          {{"endpoint", peer.endpoint}, {"error", error.what()}});
    }
  }

  // Throws zmq::error_t when there are no more sockets.
  std::unique_ptr<Link> NewLink(Peer& peer) {
    zmq::socket_t dealer(context_, zmq::socket_type::dealer);
    Configure(dealer, options_.max_queued, options_.max_message_bytes);
    dealer.set(zmq::sockopt::reconnect_ivl, 100);
    dealer.set(zmq::sockopt::reconnect_ivl_max, 2000);
    // Messages wait in our bounded queue, not in ZeroMQ's, until there is a connection.
    dealer.set(zmq::sockopt::immediate, true);
    if (curve_.has_value()) {
      if (!curve_->peers.contains(peer.node_key)) peer.node_key = *curve_->peers.begin();
      dealer.set(zmq::sockopt::curve_publickey, curve_->own.public_key);
      dealer.set(zmq::sockopt::curve_secretkey, curve_->own.secret_key);
      dealer.set(zmq::sockopt::curve_serverkey, peer.node_key);
    }
    auto link = std::make_unique<Link>(std::move(dealer), curve_.has_value() ? peer.node_key : "");
    link->monitor = Monitor(link->dealer);
    try {
      link->dealer.connect("tcp://" + peer.endpoint);
    } catch (const zmq::error_t& error) {
      // Looks like a peer that is away; the caller's heartbeats notice.
      telemetry::LogWarning("cannot connect",
                            {{"endpoint", peer.endpoint}, {"error", error.what()}});
    }
    return link;
  }

  // The handshake of `link`, which is not up, has failed. ZeroMQ itself would not try again after
  // most failures, and not with another key.
  void Redial(Peer& peer, const Link& link, Handshake result) {
    (peer.trial.get() == &link ? peer.trial : peer.link).reset();
    const TimePoint now = Now();
    const size_t keys = curve_.has_value() ? curve_->peers.size() : 1;
    if (result == Handshake::kClosed && keys > 1) {
      // Every node's key is tried before any is again.
      auto next = curve_->peers.upper_bound(peer.node_key);
      peer.node_key = next == curve_->peers.end() ? *curve_->peers.begin() : *next;
    }
    ++peer.failures;
    const bool round_over = result != Handshake::kClosed || peer.failures % keys == 0;
    peer.dial_at = now + (round_over ? kRetryInterval : std::chrono::seconds(0));
    if (!round_over) return;
    if (peer.told == result && !peer.log.Admit(now)) return;
    peer.told = result;
    telemetry::LogWarning(
        "no control connection to a node",
        {{"endpoint", peer.endpoint}, {"reason", ReasonAtRouter(result, curve_.has_value())}});
  }

  void Established(Peer& peer, Link& link) {
    link.up = true;
    peer.failures = 0;
    if (peer.told.has_value()) {
      telemetry::LogInfo("control connection to a node made", {{"endpoint", peer.endpoint}});
      peer.told.reset();
    }
    if (peer.trial.get() != &link) return;
    if (peer.link != nullptr) {
      peer.former = std::move(peer.link);
      peer.former_until = Now() + kFormerLinkTime;
    }
    peer.link = std::move(peer.trial);
  }

  void Forget(PeerId id) {
    auto it = peers_.find(id);
    if (it == peers_.end()) return;
    if (!it->second.routing_id.empty()) by_routing_id_.erase(it->second.routing_id);
    peers_.erase(it);
  }

  // Hands what waits to the socket, as far as it takes it.
  void Flush(Peer& peer) {
    while (!peer.waiting.empty()) {
      const std::string& bytes = peer.waiting.front().bytes;
      if (peer.routing_id.empty() && peer.link == nullptr) return;
      try {
        if (peer.link != nullptr) {
          if (!peer.link->dealer.send(zmq::buffer(bytes), zmq::send_flags::dontwait)) return;
        } else {
          const auto more = zmq::send_flags::sndmore | zmq::send_flags::dontwait;
          if (!router_.send(zmq::buffer(peer.routing_id), more)) return;
          if (!router_.send(zmq::buffer(bytes), zmq::send_flags::dontwait)) return;
        }
      } catch (const zmq::error_t& error) {
        // EHOSTUNREACH: the peer that wrote to us has left. Its return will be a new peer.
        peer.waiting.clear();
        if (!peer.routing_id.empty()) gone_.push_back(peer.routing_id);
        return;
      }
      peer.waiting.pop_front();
    }
  }

  void ForgetGone() {
    for (const std::string& routing_id : std::exchange(gone_, {})) {
      auto it = by_routing_id_.find(routing_id);
      if (it != by_routing_id_.end()) ForgetInbound(it->second);
    }
  }

  void ForgetInbound(PeerId id) {
    Forget(id);
    shared_->loop.Post([shared = shared_, id] { shared->peers.erase(id); });
  }

  void ReadDealer(PeerId id, zmq::socket_t& dealer) {
    while (shared_->received.load() < options_.max_received) {
      zmq::message_t message;
      if (!dealer.recv(message, zmq::recv_flags::dontwait)) return;
      const bool single = !message.more();
      DropRest(dealer, message);
      Deliver(id, message, single);
    }
  }

  struct Event {
    int event = 0;
    uint32_t value = 0;
  };

  // Two parts: what happened, and an address that says nothing new.
  static std::optional<Event> NextEvent(zmq::socket_t& monitor) {
    zmq::message_t message;
    if (!monitor.recv(message, zmq::recv_flags::dontwait)) return std::nullopt;
    DropRest(monitor, message);
    uint16_t event = 0;
    Event result;
    if (message.size() != sizeof(event) + sizeof(result.value)) return result;
    std::memcpy(&event, message.data(), sizeof(event));
    std::memcpy(&result.value, message.data<char>() + sizeof(event), sizeof(result.value));
    result.event = event;
    return result;
  }

  void ReadLinkMonitor(PeerId id, Link& link) {
    Peer& peer = peers_.at(id);
    while (const std::optional<Event> event = NextEvent(link.monitor)) {
      if (event->event == ZMQ_EVENT_DISCONNECTED) {
        if (std::exchange(link.up, false) && peer.link.get() == &link) TellDisconnected(id);
        continue;
      }
      const std::optional<Handshake> result = HandshakeOf(event->event, event->value);
      if (!result.has_value()) continue;
      shared_->handshakes.at(*result).Increment();
      if (*result == Handshake::kOk) {
        Established(peer, link);
      } else if (peer.former.get() == &link) {
        peer.former.reset();
        return;
      } else {
        Redial(peer, link, *result);
        return;
      }
    }
  }

  void TellDisconnected(PeerId id) {
    shared_->loop.Post([shared = shared_, id] {
      if (shared->handler != nullptr && shared->peers.contains(id)) {
        shared->handler->OnDisconnected(id);
      }
    });
  }

  void ReadRouterMonitor() {
    while (const std::optional<Event> event = NextEvent(router_monitor_)) {
      const std::optional<Handshake> result = HandshakeOf(event->event, event->value);
      if (!result.has_value()) continue;
      shared_->handshakes.at(*result).Increment();
      // AnswerZap() knows more of these.
      if (*result == Handshake::kOk || *result == Handshake::kUnauthorized) continue;
      if (!logs_[*result].Admit(Now())) continue;
      telemetry::LogWarning("a control connection was not made",
                            {{"reason", ReasonAtNode(*result, curve_.has_value())}});
    }
  }

  // ZeroMQ's question about a key (rfc.zeromq.org/spec/27), and what this end says to it.
  void AnswerZap() {
    zmq::message_t part;
    while (zap_.recv(part, zmq::recv_flags::dontwait)) {
      std::vector<zmq::message_t> parts;
      parts.push_back(std::move(part));
      while (parts.back().more()) {
        if (!zap_.recv(parts.emplace_back(), zmq::recv_flags::dontwait)) break;
      }
      // Version, request id, domain, address, identity, mechanism, key.
      const bool ours = parts.size() == 7 && parts[5].to_string_view() == "CURVE";
      const std::string key = ours ? ToZ85(parts[6]) : std::string();
      const bool known = curve_.has_value() && !key.empty() && curve_->peers.contains(key);
      if (!known && logs_[Handshake::kUnauthorized].Admit(Now())) {
        telemetry::LogWarning("a control connection was not made",
                              {{"reason", ReasonAtNode(Handshake::kUnauthorized, true)},
                               {"address", ours ? parts[3].to_string() : ""},
                               {"public_key", key}});
      }
      const std::string id = parts.size() > 1 ? parts[1].to_string() : std::string();
      const std::string answer[] = {"1.0", id, known ? "200" : "400", known ? "OK" : "unknown key",
                                    known ? key : ""};
      for (const std::string& text : answer) zap_.send(zmq::buffer(text), zmq::send_flags::sndmore);
      zap_.send(zmq::message_t(), zmq::send_flags::none);
    }
  }

  void ReadRouter() {
    while (shared_->received.load() < options_.max_received) {
      zmq::message_t routing_id;
      if (!router_.recv(routing_id, zmq::recv_flags::dontwait)) return;
      if (!routing_id.more()) continue;
      zmq::message_t message;
      if (!router_.recv(message, zmq::recv_flags::dontwait)) return;
      const bool single = !message.more();
      DropRest(router_, message);
      std::string user;
      if (curve_.has_value()) {
        const char* property = zmq_msg_gets(message.handle(), "User-Id");  // From AnswerZap().
        if (property != nullptr) user = property;
        // Not so of a connection from before its key was taken off the list.
        if (!curve_->peers.contains(user)) {
          shared_->metrics.OnDropped(Drop::kUnauthorized);
          continue;
        }
      }
      Deliver(InboundPeer(routing_id.to_string(), std::move(user)), message, single);
    }
  }

  // Ours are one part long; further parts belong to no message of ours.
  static void DropRest(zmq::socket_t& socket, const zmq::message_t& message) {
    bool more = message.more();
    while (more) {
      zmq::message_t part;
      if (!socket.recv(part, zmq::recv_flags::dontwait)) return;
      more = part.more();
    }
  }

  PeerId InboundPeer(std::string routing_id, std::string user) {
    auto it = by_routing_id_.find(routing_id);
    if (it == by_routing_id_.end()) {
      if (by_routing_id_.size() >= options_.max_inbound_peers) {
        PeerId oldest = by_routing_id_.begin()->second;
        for (const auto& [name, id] : by_routing_id_) {
          if (peers_[id].last_heard < peers_[oldest].last_heard) oldest = id;
        }
        ForgetInbound(oldest);
      }
      it = by_routing_id_.emplace(routing_id, shared_->next_peer++).first;
      peers_[it->second].routing_id = std::move(routing_id);
      peers_[it->second].user = std::move(user);
    }
    peers_[it->second].last_heard = ++heard_;
    return it->second;
  }

  void Deliver(PeerId id, const zmq::message_t& message, bool single) {
    DecodedEnvelope decoded;
    if (single) {
      decoded = DecodeEnvelope(std::as_bytes(std::span(message.data<char>(), message.size())),
                               options_.max_message_bytes);
    }
    if (!decoded.ok) {
      shared_->metrics.OnDropped(decoded.drop);
      return;
    }
    shared_->metrics.OnReceived(decoded.envelope);
    shared_->received.fetch_add(1);
    // Counted down when the task has run or was dropped with its loop.
    std::shared_ptr<void> slot(nullptr,
                               [shared = shared_](void*) { shared->received.fetch_sub(1); });
    auto envelope = std::make_shared<proto::Envelope>(std::move(decoded.envelope));
    const bool inbound = !peers_[id].routing_id.empty();
    shared_->loop.Post([shared = shared_, id, inbound, envelope, slot] {
      if (shared->handler == nullptr) return;
      if (inbound) {
        auto& queued = shared->peers[id];
        if (queued == nullptr) queued = std::make_shared<std::atomic<size_t>>(0);
      } else if (!shared->peers.contains(id)) {
        return;  // Disconnected while the message was on its way.
      }
      shared->handler->OnMessage(id, std::move(*envelope));
    });
  }

  const Options options_;
  const std::shared_ptr<Shared> shared_;
  const int wake_;
  std::atomic<bool> stopping_{false};
  Mutex mu_;
  std::vector<Command> commands_ LYNX_GUARDED_BY(mu_);
  std::optional<CurveKeys> new_curve_ LYNX_GUARDED_BY(mu_);  // To be adopted.

  // Used by Bind before the thread starts, then by the thread alone.
  std::optional<CurveKeys> curve_;  // Nothing: plain, for good.
  zmq::context_t context_ = NewContext();
  uint64_t next_monitor_ = 1;
  zmq::socket_t zap_;
  zmq::socket_t router_;
  zmq::socket_t router_monitor_;
  std::string bound_;                       // As ZeroMQ calls where `router_` is bound.
  TimePoint rebind_at_ = TimePoint::max();  // When to bind it with the present key.
  LogLimit rebind_log_;
  LogLimit dial_log_;
  std::map<Handshake, LogLimit> logs_;
  std::map<PeerId, Peer> peers_;
  std::map<std::string, PeerId> by_routing_id_;
  std::vector<std::string> gone_;
  uint64_t heard_ = 0;

  std::thread thread_;
};

absl::StatusOr<std::unique_ptr<ZmqChannel>> ZmqChannel::Create(const Options& options,
                                                               EventLoop& loop,
                                                               telemetry::Registry& registry) {
  auto shared = std::make_shared<Shared>(loop, registry);
  std::unique_ptr<Io> io;
  try {
    io = std::make_unique<Io>(options, shared);
  } catch (const zmq::error_t& error) {
    return absl::UnavailableError(absl::StrCat("no sockets for the control plane: ", error.what()));
  }
  auto endpoint = io->Bind(options.bind);
  if (!endpoint.ok()) return endpoint.status();
  return std::unique_ptr<ZmqChannel>(
      new ZmqChannel(options, std::move(shared), std::move(io), *std::move(endpoint)));
}

ZmqChannel::ZmqChannel(const Options& options, std::shared_ptr<Shared> shared,
                       std::unique_ptr<Io> io, std::string endpoint)
    : options_(options),
      shared_(std::move(shared)),
      io_(std::move(io)),
      endpoint_(std::move(endpoint)) {}

ZmqChannel::~ZmqChannel() {
  shared_->handler = nullptr;
  shared_->peers.clear();
}

void ZmqChannel::Start(Handler& handler) {
  shared_->handler = &handler;
  io_->Run();
}

absl::StatusOr<PeerId> ZmqChannel::Connect(const std::string& endpoint) {
  if (!IsHostPort(endpoint)) {
    return absl::InvalidArgumentError(absl::StrCat("'", endpoint, "' is not host:port"));
  }
  const PeerId peer = shared_->next_peer++;
  shared_->peers[peer] = std::make_shared<std::atomic<size_t>>(0);
  io_->Connect(peer, endpoint);
  return peer;
}

void ZmqChannel::SetCurveKeys(CurveKeys keys) { io_->SetCurveKeys(std::move(keys)); }

void ZmqChannel::Disconnect(PeerId peer) {
  if (shared_->peers.erase(peer) > 0) io_->Disconnect(peer);
}

absl::Status ZmqChannel::Send(PeerId peer, proto::Envelope envelope) {
  auto it = shared_->peers.find(peer);
  if (it == shared_->peers.end()) {
    return absl::NotFoundError(absl::StrCat("no control peer ", peer));
  }
  envelope.set_version(kProtocolVersion);
  if (envelope.ByteSizeLong() > options_.max_message_bytes) {
    return absl::InvalidArgumentError(absl::StrCat("a control message of ", envelope.ByteSizeLong(),
                                                   " bytes; the limit is ",
                                                   options_.max_message_bytes));
  }
  if (it->second->load() >= options_.max_queued) {
    return absl::ResourceExhaustedError(
        absl::StrCat(options_.max_queued, " messages wait for control peer ", peer));
  }
  it->second->fetch_add(1);
  shared_->metrics.OnSent(envelope);
  io_->Send(peer, envelope.SerializeAsString(), it->second);
  return absl::OkStatus();
}

}  // namespace lynx::rpc
