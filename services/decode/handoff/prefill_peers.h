#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/concurrency/event_loop.h"
#include "common/proto/transfer.pb.h"
#include "common/transfer/handshake.h"
#include "common/transfer/staging_pool.h"
#include "common/transfer/transfer_engine.h"
#include "common/transfer/transfer_metrics.h"

namespace lynx::decode {

// A connection from one rank of a prefill node.
struct PrefillPeer {
  transfer::PeerId id = 0;
  Incarnation incarnation = 0;  // Of its node.
  int32_t rank = 0;
  bool same_class = false;  // Its node is of this one's numeric class.
  transfer::CopyPlan plan;
  bool ready = false;  // The self-test pattern has arrived intact.
  absl::Time since;
  std::unique_ptr<transfer::StagingPool::Account> staging;
};

// The prefill ranks that are connected to this decode rank: their handshakes, and the staging
// memory that each may use. Used on the loop.
class PrefillPeers {
 public:
  struct Options {
    // Payload bytes that one prefill rank may have on the wire, and in all.
    int64_t credit_bytes = int64_t{64} << 20;
    int64_t staging_bytes = int64_t{1} << 30;
    size_t max_peers = 256;
  };
  // A commit holds the prompt's ids: 16 MiB is over three million of them.
  static constexpr size_t kMaxCommitBytes = size_t{16} << 20;

  // All references outlive it.
  PrefillPeers(transfer::NodeIdentity self, transfer::TransferEngine& engine, EventLoop& loop,
               transfer::TransferMetrics& metrics, const Options& options);

  const transfer::NodeIdentity& self() const { return self_; }
  PrefillPeer* Find(transfer::PeerId id);

  // What a message is: of a hand-off, from a peer that has shaken hands; or a handshake, whose
  // payload is to land there; or neither, and dropped, counted and answered.
  struct Arrival {
    proto::TransferHeader header;
    PrefillPeer* peer = nullptr;
    std::unique_ptr<transfer::Landing> landing;
  };
  Arrival OnMessage(transfer::PeerId id, std::span<const std::byte> bytes, size_t payload_bytes);
  void OnHandshakePayload(PrefillPeer& peer, std::span<const std::byte> payload);
  // Null: it never shook hands.
  std::unique_ptr<PrefillPeer> Remove(transfer::PeerId id, const absl::Status& reason);

  // Tells the peer what became of a grant; best effort.
  void Reply(transfer::PeerId id, uint64_t grant_id, uint32_t epoch, const absl::Status& status);

  size_t size() const { return peers_.size(); }
  transfer::StagingPool& staging() { return staging_; }
  const transfer::StagingPool& staging() const { return staging_; }
  void UpdateGauges();

 private:
  // The peer whose message this is, once it has shaken hands. Null: dropped and counted.
  PrefillPeer* Admit(transfer::PeerId id, const proto::TransferHeader& header);
  std::unique_ptr<transfer::Landing> OnHandshake(transfer::PeerId id,
                                                 const proto::TransferHeader& header,
                                                 size_t payload_bytes);
  void Refuse(transfer::PeerId id, Incarnation sender, const absl::Status& status);
  void Send(transfer::PeerId id, const proto::TransferHeader& header);

  const transfer::NodeIdentity self_;
  transfer::TransferEngine& engine_;
  EventLoop& loop_;
  transfer::TransferMetrics& metrics_;
  const Options options_;
  transfer::StagingPool staging_;
  std::map<transfer::PeerId, std::unique_ptr<PrefillPeer>> peers_;
};

}  // namespace lynx::decode
