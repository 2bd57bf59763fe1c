#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/mutex.h"
#include "common/concurrency/event_loop.h"
#include "common/transfer/transfer_engine.h"

namespace lynx::transfer {

namespace internal {
struct LoopbackCore;
}

// The network that LoopbackEngines of one process meet on. Outlives them; so does the loop of each
// engine. Thread-safe.
class LoopbackFabric {
 private:
  friend class LoopbackEngine;
  Mutex mu_;
  std::map<std::string, std::shared_ptr<internal::LoopbackCore>> engines_ LYNX_GUARDED_BY(mu_);
  std::atomic<PeerId> next_peer_ = 1;
};

// A TransferEngine within one process: the payload is copied on the receiver's loop, straight from
// the sender's memory. Works on real threads and under a simulated clock.
class LoopbackEngine final : public TransferEngine {
 public:
  // AlreadyExists: `address` is taken.
  static absl::StatusOr<std::unique_ptr<LoopbackEngine>> Create(LoopbackFabric& fabric,
                                                                std::string address,
                                                                EventLoop& loop);
  ~LoopbackEngine() override;

  void Start(Receiver& receiver) override;
  std::string LocalAddress() const override { return address_; }
  std::string TransportName() const override { return "loopback"; }
  absl::StatusOr<PeerId> Connect(const std::string& address) override;
  void Send(PeerId peer, std::string header, std::vector<std::span<const std::byte>> payload,
            SendDone done) override;
  void Close(PeerId peer) override;

 private:
  LoopbackEngine(LoopbackFabric& fabric, std::string address,
                 std::shared_ptr<internal::LoopbackCore> core);

  LoopbackFabric& fabric_;
  const std::string address_;
  // Shared with the tasks under way on other loops.
  const std::shared_ptr<internal::LoopbackCore> core_;
};

}  // namespace lynx::transfer
