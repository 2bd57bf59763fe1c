#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/concurrency/event_loop.h"
#include "common/transfer/transfer_engine.h"

namespace lynx::transfer {

namespace internal {
class UcxWorker;
struct UcxLoopSide;
}  // namespace internal

// The TransferEngine between machines: UCX active messages. A payload of more than a few KiB is
// offered first and sent in chunks once the receiver has said where it lands; a send is done when
// all of it has landed. This is UCX's rendezvous done by ourselves, since UCX 1.13 cannot end its
// own under a stuck peer: here only our code writes into landings, so nothing of a closed
// connection can land, and the landing is free at once. Over TCP it is as fast.
//
// A progress thread owns all of UCX; it sleeps when nothing happens. A connection is a pair of UCX
// endpoints, one made by each end from the other's worker address; the first message on it carries
// the connector's address, so no listener and no port are needed.
//
// Close lets what UCX holds drain for half a second, which is time enough for a live peer, and then
// force-closes.
//
// Every endpoint has UCX's peer error handling: a killed peer goes down within a second or so over
// TCP. A frozen or unplugged peer may take very long or never go down: deadlines are the caller's.
class UcxEngine final : public TransferEngine {
 public:
  struct Options {
    // As UCX_TLS. The default works everywhere and reports dead peers; "rc,tcp" or "all" picks RDMA
    // where there is some. Shared memory has no peer errors: UCX leaves it out where it can, and
    // Create fails where nothing else is named. Empty: whatever UCX's own configuration says.
    std::string transports = "tcp";
    // As UCX_NET_DEVICES, e.g. "eth0". Empty: all that are up when Create runs.
    std::string net_devices;
    // False opens shared memory ("posix"), for measurements between two processes that one owner
    // starts and ends: a peer that dies goes unnoticed, and sends to it never end.
    bool reports_dead_peers = true;
  };

  //   InvalidArgument     UCX does not know a transport or device named.
  //   FailedPrecondition  the transports cannot report dead peers, or their headers are too small.
  //   Unavailable         UCX cannot start; the message says why.
  static absl::StatusOr<std::unique_ptr<UcxEngine>> Create(const Options& options, EventLoop& loop);
  ~UcxEngine() override;

  void Start(Receiver& receiver) override;
  std::string LocalAddress() const override;
  // "tcp", "rdma", "shm", or UCX's own name of something else: what an endpoint really uses.
  std::string TransportName() const override;
  absl::StatusOr<PeerId> Connect(const std::string& address) override;
  void Send(PeerId peer, std::string header, std::vector<std::span<const std::byte>> payload,
            SendDone done) override;
  void Close(PeerId peer) override;

 private:
  UcxEngine(std::shared_ptr<internal::UcxLoopSide> loop_side,
            std::unique_ptr<internal::UcxWorker> worker);

  const std::shared_ptr<internal::UcxLoopSide> loop_side_;
  const std::unique_ptr<internal::UcxWorker> worker_;
};

}  // namespace lynx::transfer
