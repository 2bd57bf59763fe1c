#pragma once

#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "common/base/mutex.h"
#include "common/concurrency/event_loop.h"
#include "common/transfer/transfer_engine.h"

namespace lynx::testing {

// An engine on a threaded loop, driven from a test's thread. Waits have a limit that only matters
// when a test fails: they then return what there is.
class TransferEndpoint final : private transfer::TransferEngine::Receiver {
 public:
  struct Message {
    transfer::PeerId peer = 0;
    std::string header;
    std::vector<std::byte> payload;
  };
  using MakeEngine = std::function<std::unique_ptr<transfer::TransferEngine>(EventLoop&)>;

  // `loop` outlives every endpoint that exchanges messages with this one.
  TransferEndpoint(ThreadEventLoop& loop, const MakeEngine& make_engine);
  ~TransferEndpoint() override;

  const std::string& address() const { return address_; }
  transfer::PeerId Connect(const TransferEndpoint& other);
  transfer::PeerId ConnectTo(const std::string& address);
  absl::Status TryConnect(const std::string& address);
  void Close(transfer::PeerId peer);

  // The payload stays valid until WaitForSends.
  void Send(transfer::PeerId peer, std::string header,
            std::vector<std::span<const std::byte>> payload);
  absl::Status SendAndWait(transfer::PeerId peer, std::string header,
                           std::vector<std::span<const std::byte>> payload);
  // How many sends have ended, of all that Send began; then forgets them.
  int WaitForSends();
  std::vector<absl::Status> send_results();

  // Takes the oldest `count` messages.
  std::vector<Message> WaitForMessages(size_t count);
  // Takes what has arrived.
  std::vector<Message> TakeMessages();
  // Takes the peers that went down.
  std::vector<transfer::PeerId> WaitForDown(size_t count);
  std::vector<transfer::PeerId> down();
  // Why the last one did.
  absl::Status last_down_reason();
  int WaitForRefused(int count);

  // Whether payloads are dropped.
  void set_refuse(bool refuse);
  // Waits for the last landing to be given back; returns how many are left.
  int WaitForNoLandings();

 private:
  class VectorLanding;

  std::unique_ptr<transfer::Landing> OnMessage(transfer::PeerId peer,
                                               std::span<const std::byte> header,
                                               size_t payload_bytes) override;
  void OnPayload(transfer::PeerId peer, std::span<const std::byte> header,
                 std::unique_ptr<transfer::Landing> payload) override;
  void OnPeerDown(transfer::PeerId peer, const absl::Status& reason) override;

  // Waits until `ready`, called with the lock held.
  void WaitUntil(const std::function<bool()>& ready);

  struct Counters {
    Mutex mu;
    CondVar changed;
    bool refuse LYNX_GUARDED_BY(mu) = false;
    int refused LYNX_GUARDED_BY(mu) = 0;
    int landings LYNX_GUARDED_BY(mu) = 0;
    int sends_begun LYNX_GUARDED_BY(mu) = 0;
    std::vector<absl::Status> sends_ended LYNX_GUARDED_BY(mu);
    std::vector<Message> messages LYNX_GUARDED_BY(mu);
    std::vector<transfer::PeerId> down LYNX_GUARDED_BY(mu);
    absl::Status down_reason LYNX_GUARDED_BY(mu);
  };
  // Landings may outlive the endpoint.
  const std::shared_ptr<Counters> counters_ = std::make_shared<Counters>();
  ThreadEventLoop& loop_;
  std::unique_ptr<transfer::TransferEngine> engine_;
  std::string address_;
};

}  // namespace lynx::testing
