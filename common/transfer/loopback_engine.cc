#include "common/transfer/loopback_engine.h"

#include <atomic>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"

namespace lynx::transfer {
namespace internal {

// A message between Send and its completion.
struct LoopbackMessage {
  std::string header;
  size_t payload_bytes = 0;
  TransferEngine::SendDone done;  // Sender's loop only.

  Mutex mu;
  bool readable LYNX_GUARDED_BY(mu) = true;  // False: the sender may be reusing the payload.
  std::vector<std::span<const std::byte>> payload LYNX_GUARDED_BY(mu);
};

// State of one engine. Fields belong to its loop's thread.
struct LoopbackCore : std::enable_shared_from_this<LoopbackCore> {
  struct Peer {
    std::shared_ptr<LoopbackCore> remote;
    PeerId remote_peer = 0;
    std::map<uint64_t, std::shared_ptr<LoopbackMessage>> sends;
  };

  explicit LoopbackCore(EventLoop& l) : loop(l) {}

  void OnSent(PeerId peer, uint64_t send, const absl::Status& status) {
    auto it = peers.find(peer);
    if (it == peers.end()) return;
    auto node = it->second.sends.extract(send);
    if (!node.empty()) node.mapped()->done(status);
  }

  void Deliver(PeerId peer, LoopbackMessage& message, absl::Status& status) {
    if (!peers.contains(peer)) return;
    const std::span header = std::as_bytes(std::span(message.header));
    std::unique_ptr<Landing> landing = receiver->OnMessage(peer, header, message.payload_bytes);
    status = absl::OkStatus();
    if (landing == nullptr || message.payload_bytes == 0) return;
    LYNX_CHECK(landing->bytes().size() == message.payload_bytes);
    if (!peers.contains(peer)) return;
    {
      MutexLock lock(message.mu);
      if (!message.readable) return;
      std::byte* to = landing->bytes().data();
      for (std::span<const std::byte> part : message.payload) {
        if (!part.empty()) std::memcpy(to, part.data(), part.size());
        to += part.size();
      }
    }
    receiver->OnPayload(peer, header, std::move(landing));
  }

  // Ends the sends of a peer that has been taken out of `peers`.
  void EndSends(Peer& peer, const absl::Status& status) {
    for (auto& [id, message] : peer.sends) {
      {
        MutexLock lock(message->mu);
        message->readable = false;
      }
      loop.Post([self = shared_from_this(), message = message, status] {
        if (self->alive) message->done(status);
      });
    }
  }

  void OnRemoteGone(PeerId peer, const absl::Status& reason) {
    auto node = peers.extract(peer);
    if (node.empty()) return;
    EndSends(node.mapped(), reason);
    receiver->OnPeerDown(peer, reason);
  }

  EventLoop& loop;
  TransferEngine::Receiver* receiver = nullptr;
  std::atomic<bool> alive = true;  // False once the engine is destroyed, and perhaps its loop too.
  std::map<PeerId, Peer> peers;
  uint64_t next_send = 1;
};

namespace {

// Tells the sender how a message ended when the receiving task is through with it, or was dropped.
class Delivery {
 public:
  Delivery(std::shared_ptr<LoopbackCore> sender, PeerId peer, uint64_t send,
           std::shared_ptr<LoopbackMessage> message)
      : sender_(std::move(sender)), peer_(peer), send_(send), message_(std::move(message)) {}
  ~Delivery() {
    if (!sender_->alive) return;
    sender_->loop.Post([sender = sender_, peer = peer_, send = send_, status = status_] {
      sender->OnSent(peer, send, status);
    });
  }
  Delivery(const Delivery&) = delete;
  Delivery& operator=(const Delivery&) = delete;

  LoopbackMessage& message() { return *message_; }
  absl::Status& status() { return status_; }

 private:
  const std::shared_ptr<LoopbackCore> sender_;
  const PeerId peer_;
  const uint64_t send_;
  const std::shared_ptr<LoopbackMessage> message_;
  absl::Status status_ = absl::UnavailableError("the peer is gone");
};

}  // namespace
}  // namespace internal

using internal::Delivery;
using internal::LoopbackCore;
using internal::LoopbackMessage;

absl::StatusOr<std::unique_ptr<LoopbackEngine>> LoopbackEngine::Create(LoopbackFabric& fabric,
                                                                       std::string address,
                                                                       EventLoop& loop) {
  auto core = std::make_shared<LoopbackCore>(loop);
  {
    MutexLock lock(fabric.mu_);
    if (!fabric.engines_.emplace(address, core).second) {
      return absl::AlreadyExistsError(absl::StrCat("loopback address ", address, " is taken"));
    }
  }
  return std::unique_ptr<LoopbackEngine>(
      new LoopbackEngine(fabric, std::move(address), std::move(core)));
}

LoopbackEngine::LoopbackEngine(LoopbackFabric& fabric, std::string address,
                               std::shared_ptr<LoopbackCore> core)
    : fabric_(fabric), address_(std::move(address)), core_(std::move(core)) {}

LoopbackEngine::~LoopbackEngine() {
  {
    MutexLock lock(fabric_.mu_);
    fabric_.engines_.erase(address_);
  }
  core_->alive = false;
  auto peers = std::exchange(core_->peers, {});
  for (auto& [id, peer] : peers) {
    for (auto& [send, message] : peer.sends) {
      MutexLock lock(message->mu);
      message->readable = false;
    }
    peer.remote->loop.Post([remote = peer.remote, remote_peer = peer.remote_peer] {
      remote->OnRemoteGone(remote_peer, absl::UnavailableError("the peer is gone"));
    });
  }
}

void LoopbackEngine::Start(Receiver& receiver) { core_->receiver = &receiver; }

absl::StatusOr<PeerId> LoopbackEngine::Connect(const std::string& address) {
  if (address.empty()) return absl::InvalidArgumentError("the loopback address is empty");
  const PeerId local = fabric_.next_peer_.fetch_add(2);
  const PeerId remote_peer = local + 1;
  std::shared_ptr<LoopbackCore> remote;
  {
    MutexLock lock(fabric_.mu_);
    auto it = fabric_.engines_.find(address);
    if (it != fabric_.engines_.end()) remote = it->second;
  }
  if (remote == nullptr) {
    core_->peers[local] = {core_, 0, {}};
    core_->loop.Post([core = core_, local, address] {
      core->OnRemoteGone(local, absl::UnavailableError(absl::StrCat("nobody is at ", address)));
    });
    return local;
  }
  core_->peers[local] = {remote, remote_peer, {}};
  remote->loop.Post([remote, remote_peer, core = core_, local] {
    // Not started, or destroyed meanwhile: its destructor knew nothing of this connection.
    if (remote->receiver == nullptr || !remote->alive) {
      core->loop.Post(
          [core, local] { core->OnRemoteGone(local, absl::UnavailableError("the peer is gone")); });
      return;
    }
    remote->peers[remote_peer] = {core, local, {}};
  });
  return local;
}

void LoopbackEngine::Send(PeerId peer, std::string header,
                          std::vector<std::span<const std::byte>> payload, SendDone done) {
  absl::Status refusal;
  auto it = core_->peers.find(peer);
  if (it == core_->peers.end()) {
    refusal = absl::UnavailableError("the peer is gone");
  } else if (header.size() > kMaxHeaderBytes) {
    refusal = absl::InvalidArgumentError(
        absl::StrCat("a header of ", header.size(), " bytes; the limit is ", kMaxHeaderBytes));
  }
  if (!refusal.ok()) {
    core_->loop.Post([core = core_, done = std::move(done), refusal] {
      if (core->alive) done(refusal);
    });
    return;
  }
  auto message = std::make_shared<LoopbackMessage>();
  message->header = std::move(header);
  for (std::span<const std::byte> part : payload) message->payload_bytes += part.size();
  message->done = std::move(done);
  {
    MutexLock lock(message->mu);
    message->payload = std::move(payload);
  }
  const uint64_t send = core_->next_send++;
  it->second.sends[send] = message;
  auto delivery = std::make_shared<Delivery>(core_, peer, send, message);
  it->second.remote->loop.Post(
      [remote = it->second.remote, remote_peer = it->second.remote_peer, delivery] {
        remote->Deliver(remote_peer, delivery->message(), delivery->status());
      });
}

void LoopbackEngine::Close(PeerId peer) {
  auto node = core_->peers.extract(peer);
  if (node.empty()) return;
  core_->EndSends(node.mapped(), absl::CancelledError("the connection was closed"));
  node.mapped().remote->loop.Post(
      [remote = node.mapped().remote, remote_peer = node.mapped().remote_peer] {
        remote->OnRemoteGone(remote_peer, absl::CancelledError("the peer closed"));
      });
}

}  // namespace lynx::transfer
