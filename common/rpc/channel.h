#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/proto/control.pb.h"

namespace lynx::rpc {

// Bumped when a message changes meaning; peers of another version refuse each other.
inline constexpr uint32_t kProtocolVersion = 1;

// One correspondent of a Channel: a node this end connected to, or a router that wrote to it.
// Local to the channel, never reused.
using PeerId = uint64_t;

// One end of the control plane: sends envelopes to peers and receives theirs. A node binds and
// answers whoever writes; a router connects to each node. Messages of one peer arrive in order;
// any may be lost, and a peer that restarts may go unnoticed here: incarnations in the envelopes
// and the heartbeats above this layer tell.
//
// All calls and all callbacks are on the EventLoop the channel was created with. Nothing blocks.
class Channel {
 public:
  class Handler {
   public:
    virtual ~Handler() = default;
    // A well-formed envelope of our version. Malformed, oversized and foreign-version messages are
    // dropped and counted before they get here.
    virtual void OnMessage(PeerId peer, proto::Envelope envelope) = 0;
    // The connection to a peer that this end connected to, and that was there, has broken, as it
    // does at once when the peer's process ends. It is being made anew meanwhile.
    virtual void OnDisconnected(PeerId peer) { static_cast<void>(peer); }
  };

  virtual ~Channel() = default;

  // Starts delivery. Call once, before anything else. `handler` outlives the channel.
  virtual void Start(Handler& handler) = 0;

  // Connects to a bound channel; `endpoint` is "host:port" (or the in-process name). The connection
  // is made and remade in the background. InvalidArgument: malformed endpoint.
  virtual absl::StatusOr<PeerId> Connect(const std::string& endpoint) = 0;

  // Forgets the peer and everything queued for it. Unknown peers are ignored.
  virtual void Disconnect(PeerId peer) = 0;

  // Queues one message (envelope.version is filled in here).
  //   NotFound           unknown peer.
  //   Unavailable        the peer is not connected now.
  //   ResourceExhausted  its queue is full: the peer is stuck; treat it as lost.
  virtual absl::Status Send(PeerId peer, proto::Envelope envelope) = 0;
};

}  // namespace lynx::rpc
