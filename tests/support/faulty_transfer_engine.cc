#include "tests/support/faulty_transfer_engine.h"

#include <utility>

#include "absl/status/status.h"
#include "common/transfer/handshake.h"

namespace lynx::testing {

using transfer::PeerId;

FaultyTransferEngine::~FaultyTransferEngine() { engine_.reset(); }

void FaultyTransferEngine::Start(Receiver& receiver) {
  receiver_ = &receiver;
  engine_->Start(*this);
}

void FaultyTransferEngine::Send(PeerId peer, std::string header,
                                std::vector<std::span<const std::byte>> payload, SendDone done) {
  TransferFault fault;
  if (auto parsed = transfer::ParseHeader(std::as_bytes(std::span(header)));
      script_ && parsed.ok()) {
    fault = script_(number_, *parsed);
  }
  ++number_;
  const SendId id = next_++;
  sends_[id] = {peer, std::move(done)};

  auto bytes = std::make_shared<std::vector<std::byte>>();
  const auto copy = [&] {
    for (auto part : payload) bytes->insert(bytes->end(), part.begin(), part.end());
  };
  const auto finish = [this, id](const absl::Status& status) { Complete(id, status); };
  // Sends `bytes`, which the callback keeps alive.
  const auto send_copy = [bytes](transfer::TransferEngine& engine, PeerId to, std::string head,
                                 SendDone then) {
    engine.Send(to, std::move(head), {*bytes},
                [bytes, then = std::move(then)](const absl::Status& status) { then(status); });
  };
  const auto ignore = [](const absl::Status&) {};

  switch (fault.kind) {
    case TransferFault::kNone:
      engine_->Send(peer, std::move(header), std::move(payload), finish);
      break;
    case TransferFault::kDelay:
      loop_.RunAfter(fault.delay, [this, alive = std::weak_ptr(alive_), id, peer, header, payload] {
        if (alive.expired() || !sends_.contains(id)) return;
        engine_->Send(peer, header, payload,
                      [this, id](const absl::Status& status) { Complete(id, status); });
      });
      break;
    case TransferFault::kDelayInNet:
      copy();
      loop_.RunAfter(fault.delay,
                     [this, alive = std::weak_ptr(alive_), peer, header, send_copy, ignore] {
                       if (!alive.expired()) send_copy(*engine_, peer, header, ignore);
                     });
      CompleteLater(id, absl::OkStatus());
      break;
    case TransferFault::kLose:
      CompleteLater(id, absl::OkStatus());
      break;
    case TransferFault::kCorrupt:
      copy();
      if (!bytes->empty()) (*bytes)[fault.byte % bytes->size()] ^= std::byte{0x10};
      send_copy(*engine_, peer, std::move(header), finish);
      break;
    case TransferFault::kDuplicate:
      copy();
      send_copy(*engine_, peer, header, ignore);
      send_copy(*engine_, peer, std::move(header), finish);
      break;
    case TransferFault::kFail:
      CompleteLater(id, absl::UnavailableError("injected failure"));
      break;
    case TransferFault::kHang:
      break;
    case TransferFault::kBreak:
      loop_.Post([this, alive = std::weak_ptr(alive_), peer] {
        if (alive.expired()) return;
        engine_->Close(peer);  // The other end sees its peer go down.
        OnPeerDown(peer, absl::UnavailableError("injected loss of the connection"));
      });
      break;
  }
}

void FaultyTransferEngine::Close(PeerId peer) {
  engine_->Close(peer);
  EndPeer(peer, absl::CancelledError("the connection was closed"));
}

void FaultyTransferEngine::OnPeerDown(PeerId peer, const absl::Status& reason) {
  EndPeer(peer, reason);
  receiver_->OnPeerDown(peer, reason);
}

void FaultyTransferEngine::EndPeer(PeerId peer, const absl::Status& status) {
  for (const auto& [id, send] : sends_) {
    if (send.peer == peer) CompleteLater(id, status);
  }
}

void FaultyTransferEngine::CompleteLater(SendId id, absl::Status status) {
  loop_.Post([this, alive = std::weak_ptr(alive_), id, status] {
    if (!alive.expired()) Complete(id, status);
  });
}

void FaultyTransferEngine::Complete(SendId id, const absl::Status& status) {
  auto node = sends_.extract(id);
  if (!node.empty()) node.mapped().done(status);
}

}  // namespace lynx::testing
