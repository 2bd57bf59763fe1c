#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "common/concurrency/event_loop.h"
#include "common/rpc/channel.h"
#include "common/rpc/curve_keys.h"
#include "common/telemetry/metrics.h"

namespace lynx::rpc {

// The Channel between processes: ZeroMQ over TCP, a ROUTER socket where it is bound and a DEALER
// for each peer it connects to. A thread of its own owns the sockets; messages cross to and from
// the loop by bounded queues.
//
// Connections are made and remade in the background, so Send() to a node that is away succeeds
// until the peer's queue is full; what was queued goes to whatever listens there next, which
// tells by the incarnation that it was not meant. A router that has left is forgotten at the first
// message that finds it gone.
//
// With CURVE keys a connecting end tries the public keys of its peers one after another until a
// node proves to have one. A handshake that fails is tried again for ever, and counted at both ends
// in lynx_control_handshakes_total; nothing is ever sent in plain text then.
class ZmqChannel final : public Channel {
 public:
  struct Options {
    std::string bind = {};       // "address:port" ("0.0.0.0:9100", "[::]:0"); empty: not bound.
    size_t max_queued = 4096;    // Messages under way to one peer.
    size_t max_received = 4096;  // Messages on their way to the handler; then the network waits.
    size_t max_inbound_peers = 1024;  // Peers that wrote to us; the one longest silent gives way.
    size_t max_message_bytes = size_t{16} << 20;
    // Nothing: plain. Else all connections are encrypted, both ends know each other's keys, and
    // nobody else is heard.
    std::optional<CurveKeys> curve = {};
  };

  // InvalidArgument: `bind` is not address:port. Unavailable: it cannot be bound (in use, not an
  // address of this machine); names it.
  static absl::StatusOr<std::unique_ptr<ZmqChannel>> Create(const Options& options, EventLoop& loop,
                                                            telemetry::Registry& registry);
  // Gives queued messages a moment to leave (200 ms). On the loop, or when the loop has stopped.
  ~ZmqChannel() override;

  void Start(Handler& handler) override;
  absl::StatusOr<PeerId> Connect(const std::string& endpoint) override;
  void Disconnect(PeerId peer) override;
  absl::Status Send(PeerId peer, proto::Envelope envelope) override;

  // Thread-safe; only for a channel that was created with keys; in force soon after. Peers whose
  // keys are gone are heard no more; connections to nodes are made anew with a new key of our own
  // while those before are still read. A new key of a bound end cuts its connections, which the
  // other ends then make anew.
  void SetCurveKeys(CurveKeys keys);

  // Where it is bound, "address:port" with the real port; empty when not bound.
  const std::string& endpoint() const { return endpoint_; }

 private:
  struct Shared;
  class Io;
  ZmqChannel(const Options& options, std::shared_ptr<Shared> shared, std::unique_ptr<Io> io,
             std::string endpoint);

  const Options options_;
  const std::shared_ptr<Shared> shared_;
  const std::unique_ptr<Io> io_;
  const std::string endpoint_;
};

}  // namespace lynx::rpc
