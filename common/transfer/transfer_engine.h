#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace lynx::transfer {

// A connection to one remote engine, seen from this end. Never reused.
using PeerId = uint64_t;

// Longest header of a message on every engine.
inline constexpr size_t kMaxHeaderBytes = 4096;

// Memory that one arriving payload lands in. Destroying it gives the memory back. The engine
// destroys it only when the transport can no longer write to it, which may be long after the
// connection was closed; possibly on another thread than the loop's.
class Landing {
 public:
  virtual ~Landing() = default;
  Landing(const Landing&) = delete;
  Landing& operator=(const Landing&) = delete;
  std::span<std::byte> bytes() const { return bytes_; }

 protected:
  explicit Landing(std::span<std::byte> bytes) : bytes_(bytes) {}

 private:
  const std::span<std::byte> bytes_;
};

// Moves bytes between nodes: each message is a small header and a payload of any size. The
// *receiver* decides where a payload lands, after seeing its header, so a late or stale message can
// be dropped and never lands in memory that now belongs to someone else.
//
// A connection carries messages both ways: the end that called Connect has a PeerId at once, the
// other end has one from the first message it receives, and answers by Send to it.
//
// Nothing here bounds how long a message takes: a frozen peer may take it for ever. Deadlines are
// the caller's, and Close() is how they are enforced.
//
// All calls and all callbacks are on the EventLoop the engine was created with; so is destruction,
// unless the loop has stopped. Nothing blocks except destruction, which ends every connection:
// afterwards no payload is read, no landing is written, and callbacks that have not run never will.
class TransferEngine {
 public:
  // Where the payload of an arriving message goes.
  class Receiver {
   public:
    virtual ~Receiver() = default;

    // A message has arrived from `peer`. Returns memory of exactly `payload_bytes` bytes, or null
    // to drop the message (its sender still sees success: refusal is a matter of the protocol
    // above). `header` is valid during the call. payload_bytes is what the peer claims: check it
    // before allocating. A message without payload is complete with this call, and what it returns
    // is ignored.
    virtual std::unique_ptr<Landing> OnMessage(PeerId peer, std::span<const std::byte> header,
                                               size_t payload_bytes) = 0;

    // The payload is complete in the memory OnMessage gave. Messages of one peer may complete out
    // of order; one that fails is never completed, only its landing is destroyed. Not called after
    // the peer went down.
    virtual void OnPayload(PeerId peer, std::span<const std::byte> header,
                           std::unique_ptr<Landing> payload) = 0;

    // The connection is gone; every send on it has been or is being completed with an error, and no
    // payload of it will arrive. Not called for peers closed by Close(). Cancelled: the peer has
    // closed it, as a node does that ends; anything else is a failure.
    virtual void OnPeerDown(PeerId peer, const absl::Status& reason) = 0;
  };

  using SendDone = std::function<void(const absl::Status&)>;

  virtual ~TransferEngine() = default;

  // Starts delivery. Call once, before anything else. `receiver` outlives the engine.
  virtual void Start(Receiver& receiver) = 0;

  // Opaque bytes by which other engines of this kind can Connect to this one.
  virtual std::string LocalAddress() const = 0;

  // Name of the transport payloads use, for logs and metrics: "tcp", "loopback", ...
  virtual std::string TransportName() const = 0;

  // InvalidArgument: not an address of this kind. A peer that cannot be reached shows up as
  // OnPeerDown or a failed send, not here.
  virtual absl::StatusOr<PeerId> Connect(const std::string& address) = 0;

  // Sends one message. `payload` parts are sent back to back and must stay valid and unchanged
  // until `done`; the header is copied. `done` runs exactly once, never inside this call:
  //   OK               the payload may be reused. Not a proof of delivery: protocols above
  //                    acknowledge.
  //   Unavailable      the peer is gone or unknown.
  //   Cancelled        Close() ended it, here or there.
  //   InvalidArgument  the header is longer than kMaxHeaderBytes.
  virtual void Send(PeerId peer, std::string header,
                    std::vector<std::span<const std::byte>> payload, SendDone done) = 0;

  // Force-closes the connection: every pending send and arrival on it ends now, also towards a
  // frozen peer. Once the sends' `done` have run nothing reads their payload. Unknown peers are
  // ignored.
  virtual void Close(PeerId peer) = 0;
};

}  // namespace lynx::transfer
