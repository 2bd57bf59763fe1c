#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "common/concurrency/event_loop.h"
#include "common/proto/transfer.pb.h"
#include "common/transfer/transfer_engine.h"

namespace lynx::testing {

// What becomes of one message.
struct TransferFault {
  enum Kind {
    kNone,
    kDelay,       // The bytes are read and sent only after `delay`; `done` comes with that.
    kDelayInNet,  // The bytes are read now and `done` is OK now; they arrive after `delay`.
    kLose,        // `done` is OK, nothing arrives.
    kCorrupt,     // One byte of the payload, number `byte` modulo its size, arrives changed.
    kDuplicate,   // Arrives twice.
    kFail,        // `done` is Unavailable, nothing arrives.
    kHang,        // `done` comes only when the connection ends.
    kBreak,       // The connection goes down now, at both ends.
  };
  Kind kind = kNone;
  absl::Duration delay = {};
  uint64_t byte = 0;
};

// A TransferEngine with faults on what it sends, for tests: wraps another engine and asks a script
// about each message.
class FaultyTransferEngine final : public transfer::TransferEngine,
                                   private transfer::TransferEngine::Receiver {
 public:
  using Receiver = transfer::TransferEngine::Receiver;
  // `number` counts the messages from 0.
  using Script = std::function<TransferFault(int number, const proto::TransferHeader& header)>;

  FaultyTransferEngine(std::unique_ptr<transfer::TransferEngine> engine, EventLoop& loop)
      : engine_(std::move(engine)), loop_(loop) {}
  ~FaultyTransferEngine() override;

  void set_script(Script script) { script_ = std::move(script); }
  int sent() const { return number_; }
  // Payload sends whose `done` has not run.
  size_t pending() const { return sends_.size(); }

  void Start(Receiver& receiver) override;
  std::string LocalAddress() const override { return engine_->LocalAddress(); }
  std::string TransportName() const override { return engine_->TransportName(); }
  absl::StatusOr<transfer::PeerId> Connect(const std::string& address) override {
    return engine_->Connect(address);
  }
  void Send(transfer::PeerId peer, std::string header,
            std::vector<std::span<const std::byte>> payload, SendDone done) override;
  void Close(transfer::PeerId peer) override;

 private:
  using SendId = uint64_t;
  struct Pending {
    transfer::PeerId peer = 0;
    SendDone done;
  };

  std::unique_ptr<transfer::Landing> OnMessage(transfer::PeerId peer,
                                               std::span<const std::byte> header,
                                               size_t payload_bytes) override {
    return receiver_->OnMessage(peer, header, payload_bytes);
  }
  void OnPayload(transfer::PeerId peer, std::span<const std::byte> header,
                 std::unique_ptr<transfer::Landing> payload) override {
    receiver_->OnPayload(peer, header, std::move(payload));
  }
  void OnPeerDown(transfer::PeerId peer, const absl::Status& reason) override;

  // Runs the `done` of a send, once.
  void Complete(SendId id, const absl::Status& status);
  void CompleteLater(SendId id, absl::Status status);
  void EndPeer(transfer::PeerId peer, const absl::Status& status);

  std::unique_ptr<transfer::TransferEngine> engine_;
  EventLoop& loop_;
  Receiver* receiver_ = nullptr;
  Script script_;
  int number_ = 0;
  SendId next_ = 1;
  std::map<SendId, Pending> sends_;
  std::shared_ptr<const bool> alive_ = std::make_shared<const bool>(true);
};

}  // namespace lynx::testing
