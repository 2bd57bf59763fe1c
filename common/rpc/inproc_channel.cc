#include "common/rpc/inproc_channel.h"

#include <atomic>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/ids.h"
#include "common/rpc/envelope.h"

namespace lynx::rpc {
namespace internal {

// State of one channel. Fields belong to its loop's thread unless they are atomic.
struct InProcCore {
  struct Peer {
    std::string endpoint;              // Of a peer this end connected to.
    std::weak_ptr<InProcCore> remote;  // Of a peer that wrote to this end.
    PeerId remote_peer = 0;            // Its name for this end.
    std::shared_ptr<std::atomic<size_t>> queued = std::make_shared<std::atomic<size_t>>(0);
  };

  InProcCore(EventLoop& l, telemetry::Registry& registry) : loop(l), metrics(registry) {}

  // A message that `from` sent; `addressed` is this end's peer, or 0 when `from` connected to us.
  void Receive(const std::shared_ptr<InProcCore>& from, PeerId from_peer, PeerId addressed,
               proto::Envelope envelope) {
    if (handler == nullptr) return;  // Not started, or gone.
    Drop drop;
    if (!IsDeliverable(envelope, drop)) {
      metrics.OnDropped(drop);
      return;
    }
    PeerId peer = addressed;
    if (addressed == 0) {
      auto [it, fresh] = inbound.try_emplace({from->serial, from_peer}, next_peer);
      peer = it->second;
      if (fresh) {
        ++next_peer;
        peers[peer].remote = from;
        peers[peer].remote_peer = from_peer;
      }
    }
    if (!peers.contains(peer)) return;
    metrics.OnReceived(envelope);
    handler->OnMessage(peer, std::move(envelope));
  }

  void Forget(PeerId peer) {
    auto node = peers.extract(peer);
    if (node.empty()) return;
    std::erase_if(inbound, [peer](const auto& entry) { return entry.second == peer; });
  }

  EventLoop& loop;
  const uint64_t serial = RandomId();  // An address could be used again.
  ChannelMetrics metrics;
  Channel::Handler* handler = nullptr;
  std::map<PeerId, Peer> peers;
  std::map<std::pair<uint64_t, PeerId>, PeerId> inbound;  // By serial and its PeerId of us.
  PeerId next_peer = 1;
};

}  // namespace internal

using internal::InProcCore;

std::shared_ptr<InProcCore> InProcNetwork::Find(const std::string& name) {
  MutexLock lock(mu_);
  auto it = bound_.find(name);
  return it == bound_.end() ? nullptr : it->second;
}

absl::StatusOr<std::unique_ptr<InProcChannel>> InProcChannel::Create(
    InProcNetwork& network, Options options, EventLoop& loop, telemetry::Registry& registry) {
  auto core = std::make_shared<InProcCore>(loop, registry);
  if (!options.bind.empty()) {
    MutexLock lock(network.mu_);
    if (!network.bound_.emplace(options.bind, core).second) {
      return absl::AlreadyExistsError(absl::StrCat("in-process name ", options.bind, " is bound"));
    }
  }
  return std::unique_ptr<InProcChannel>(
      new InProcChannel(network, std::move(options), std::move(core)));
}

InProcChannel::InProcChannel(InProcNetwork& network, Options options,
                             std::shared_ptr<InProcCore> core)
    : network_(network), options_(std::move(options)), core_(std::move(core)) {}

InProcChannel::~InProcChannel() {
  if (!options_.bind.empty()) {
    MutexLock lock(network_.mu_);
    network_.bound_.erase(options_.bind);
  }
  core_->handler = nullptr;
  for (const auto& [id, peer] : core_->peers) {
    std::shared_ptr<InProcCore> remote = peer.remote.lock();
    if (remote == nullptr) continue;
    remote->loop.Post([remote, to_us = peer.remote_peer] {
      if (remote->handler != nullptr && remote->peers.contains(to_us)) {
        remote->handler->OnDisconnected(to_us);
      }
    });
  }
  core_->peers.clear();
  core_->inbound.clear();
}

void InProcChannel::Start(Handler& handler) { core_->handler = &handler; }

absl::StatusOr<PeerId> InProcChannel::Connect(const std::string& endpoint) {
  if (endpoint.empty()) return absl::InvalidArgumentError("the in-process name is empty");
  const PeerId peer = core_->next_peer++;
  core_->peers[peer].endpoint = endpoint;
  return peer;
}

void InProcChannel::Disconnect(PeerId peer) { core_->Forget(peer); }

absl::Status InProcChannel::Send(PeerId peer_id, proto::Envelope envelope) {
  auto it = core_->peers.find(peer_id);
  if (it == core_->peers.end()) {
    return absl::NotFoundError(absl::StrCat("no control peer ", peer_id));
  }
  InProcCore::Peer& peer = it->second;
  envelope.set_version(kProtocolVersion);
  if (envelope.ByteSizeLong() > options_.max_message_bytes) {
    return absl::InvalidArgumentError(absl::StrCat("a control message of ", envelope.ByteSizeLong(),
                                                   " bytes; the limit is ",
                                                   options_.max_message_bytes));
  }
  std::shared_ptr<InProcCore> remote =
      peer.endpoint.empty() ? peer.remote.lock() : network_.Find(peer.endpoint);
  if (remote == nullptr) {
    return absl::UnavailableError(absl::StrCat("control peer ", peer.endpoint, " is not there"));
  }
  if (peer.queued->load() >= options_.max_queued) {
    return absl::ResourceExhaustedError(
        absl::StrCat(options_.max_queued, " messages wait for control peer ", peer_id));
  }
  peer.queued->fetch_add(1);
  core_->metrics.OnSent(envelope);
  // Counted down when the task has run or was dropped with its loop.
  std::shared_ptr<void> slot(nullptr, [queued = peer.queued](void*) { queued->fetch_sub(1); });
  auto shared = std::make_shared<proto::Envelope>(std::move(envelope));
  remote->loop.Post([remote, from = core_, peer_id, addressed = peer.remote_peer, slot, shared] {
    remote->Receive(from, peer_id, addressed, std::move(*shared));
  });
  return absl::OkStatus();
}

}  // namespace lynx::rpc
