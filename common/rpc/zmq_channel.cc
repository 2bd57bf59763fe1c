#include "common/rpc/zmq_channel.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <deque>
#include <map>
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

// Options of every socket. CURVE keys belong here, too.
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

bool IsHostPort(const std::string& text) {
  const size_t colon = text.rfind(':');
  return colon != std::string::npos && colon > 0 && colon + 1 < text.size() &&
         text.find_first_not_of("0123456789", colon + 1) == std::string::npos;
}

}  // namespace

// What the loop and the I/O thread share. Fields without a lock belong to the loop.
struct ZmqChannel::Shared {
  Shared(EventLoop& l, telemetry::Registry& registry) : loop(l), metrics(registry) {}

  EventLoop& loop;
  ChannelMetrics metrics;
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
        router_(context_, zmq::socket_type::router) {
    LYNX_CHECK(wake_ >= 0);
  }

  ~Io() {
    if (thread_.joinable()) {
      stopping_ = true;
      Wake();
      thread_.join();
    }
    close(wake_);
  }

  absl::StatusOr<std::string> Bind(const std::string& address) {
    Configure(router_, options_.max_queued, options_.max_message_bytes);
    router_.set(zmq::sockopt::router_mandatory, true);
    if (address.empty()) return std::string();
    if (!IsHostPort(address)) {
      return absl::InvalidArgumentError(absl::StrCat("'", address, "' is not address:port"));
    }
    try {
      router_.bind("tcp://" + address);
      const std::string bound = router_.get(zmq::sockopt::last_endpoint);
      return absl::StrCat(address.substr(0, address.rfind(':')), bound.substr(bound.rfind(':')));
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
  struct Peer {
    std::unique_ptr<zmq::socket_t> dealer;   // Of a peer we connected to,
    std::unique_ptr<zmq::socket_t> monitor;  // which says here what becomes of its connection;
    std::string routing_id;                  // or of one that wrote to us.
    uint64_t last_heard = 0;
    std::deque<Command> waiting;  // What the socket did not take yet.
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

  void Loop() {
    while (!stopping_) {
      std::vector<zmq::pollitem_t> items = {{nullptr, wake_, ZMQ_POLLIN, 0}};
      std::vector<PeerId> dealers;
      const bool room = shared_->received.load() < options_.max_received;
      items.push_back({router_.handle(), 0, static_cast<short>(room ? ZMQ_POLLIN : 0), 0});
      bool blocked = false;
      for (auto& [id, peer] : peers_) {
        blocked = blocked || !peer.waiting.empty();
        if (peer.dealer == nullptr) continue;
        dealers.push_back(id);
        short events = static_cast<short>(room ? ZMQ_POLLIN : 0);
        if (!peer.waiting.empty()) events = static_cast<short>(events | ZMQ_POLLOUT);
        items.push_back({peer.dealer->handle(), 0, events, 0});
        items.push_back({peer.monitor->handle(), 0, ZMQ_POLLIN, 0});
      }
      // A ROUTER has no event for "this one peer takes messages again": look again soon. The same
      // when the handler is behind.
      const auto wait = std::chrono::milliseconds(blocked || !room ? 5 : 1000);
      zmq::poll(items, wait);
      if ((items[0].revents & ZMQ_POLLIN) != 0) {
        uint64_t count = 0;
        [[maybe_unused]] const ssize_t got = read(wake_, &count, sizeof(count));
      }
      RunCommands();
      for (auto& [id, peer] : peers_) Flush(peer);
      ForgetGone();
      if ((items[1].revents & ZMQ_POLLIN) != 0) ReadRouter();
      for (size_t i = 0; i < dealers.size(); ++i) {
        auto it = peers_.find(dealers[i]);
        if (it == peers_.end()) continue;
        if ((items[2 * i + 2].revents & ZMQ_POLLIN) != 0) ReadDealer(it->first, *it->second.dealer);
        if ((items[2 * i + 3].revents & ZMQ_POLLIN) != 0) {
          ReadMonitor(it->first, *it->second.monitor);
        }
      }
    }
    RunCommands();
    for (auto& [id, peer] : peers_) Flush(peer);
    peers_.clear();
    router_.close();
  }

  void RunCommands() LYNX_EXCLUDES(mu_) {
    std::vector<Command> commands;
    {
      MutexLock lock(mu_);
      commands.swap(commands_);
    }
    for (Command& command : commands) {
      switch (command.kind) {
        case Command::kConnect:
          Dial(command.peer, command.bytes);
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

  void Dial(PeerId id, const std::string& endpoint) {
    Peer& peer = peers_[id];
    peer.dealer = std::make_unique<zmq::socket_t>(context_, zmq::socket_type::dealer);
    Configure(*peer.dealer, options_.max_queued, options_.max_message_bytes);
    peer.dealer->set(zmq::sockopt::reconnect_ivl, 100);
    peer.dealer->set(zmq::sockopt::reconnect_ivl_max, 2000);
    // Messages wait in our bounded queue, not in ZeroMQ's, until there is a connection.
    peer.dealer->set(zmq::sockopt::immediate, true);
    const std::string monitor = absl::StrCat("inproc://monitor-", id);
    LYNX_CHECK(zmq_socket_monitor(peer.dealer->handle(), monitor.c_str(), ZMQ_EVENT_DISCONNECTED) ==
               0);
    peer.monitor = std::make_unique<zmq::socket_t>(context_, zmq::socket_type::pair);
    peer.monitor->set(zmq::sockopt::linger, 0);
    peer.monitor->connect(monitor);
    try {
      peer.dealer->connect("tcp://" + endpoint);
    } catch (const zmq::error_t& error) {
      // Looks like a peer that is away; the caller's heartbeats notice.
      telemetry::LogWarning("cannot connect", {{"endpoint", endpoint}, {"error", error.what()}});
    }
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
      try {
        if (peer.dealer != nullptr) {
          if (!peer.dealer->send(zmq::buffer(bytes), zmq::send_flags::dontwait)) return;
        } else {
          const auto more = zmq::send_flags::sndmore | zmq::send_flags::dontwait;
          if (!router_.send(zmq::buffer(peer.routing_id), more)) return;
          if (!router_.send(zmq::buffer(bytes), zmq::send_flags::dontwait)) return;
        }
      } catch (const zmq::error_t& error) {
        // EHOSTUNREACH: the peer that wrote to us has left. Its return will be a new peer.
        peer.waiting.clear();
        if (peer.dealer == nullptr) gone_.push_back(peer.routing_id);
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

  // Each event is two parts, of which only that it came matters.
  void ReadMonitor(PeerId id, zmq::socket_t& monitor) {
    zmq::message_t event;
    bool disconnected = false;
    while (monitor.recv(event, zmq::recv_flags::dontwait)) {
      DropRest(monitor, event);
      disconnected = true;
    }
    if (!disconnected) return;
    shared_->loop.Post([shared = shared_, id] {
      if (shared->handler != nullptr && shared->peers.contains(id)) {
        shared->handler->OnDisconnected(id);
      }
    });
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
      Deliver(InboundPeer(routing_id.to_string()), message, single);
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

  PeerId InboundPeer(std::string routing_id) {
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
    const bool inbound = peers_[id].dealer == nullptr;
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

  // Used by Bind before the thread starts, then by the thread alone.
  zmq::context_t context_;
  zmq::socket_t router_;
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
  auto io = std::make_unique<Io>(options, shared);
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
