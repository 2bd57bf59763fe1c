#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/concurrency/event_loop.h"
#include "common/kv/kv_arena.h"
#include "common/kv/swapped_kv.h"
#include "common/node/rank_worker.h"
#include "common/proto/transfer.pb.h"
#include "common/transfer/handshake.h"
#include "common/transfer/transfer_engine.h"
#include "common/transfer/transfer_metrics.h"
#include "services/decode/handoff/grant_senders.h"
#include "services/decode/handoff/part_fill.h"
#include "services/decode/handoff/prefill_peers.h"

namespace lynx::decode {

// Takes this rank's heads of the KV that prefill nodes hand to a decode node, on each rank but 0,
// whose KvReceiver opens and closes the grants and is told when a part is complete, or why it will
// not be. Also keeps this rank's copies of what preempted sequences hold.
//
// A push may be here before what opens its grant, or its epoch: it waits for that, in the staging
// memory of its sender.
//
// All calls and callbacks are on the loop.
class RankReceiver final : public node::RankWorker, private transfer::TransferEngine::Receiver {
 public:
  struct Options {
    PrefillPeers::Options peers = {};
    absl::Duration early_time = absl::Seconds(2);  // A push without a grant is dropped after that.
  };
  // Starts the engine.
  RankReceiver(node::RankWorkerParts parts, const Options& options);
  ~RankReceiver() override;

  void OnMessage(const proto::RankMessage& message) override;

  size_t parts() const { return parts_.size(); }
  size_t early() const { return early_.size(); }
  size_t copies() const { return copies_.size(); }
  size_t staging_bytes() const { return peers_.staging().used_bytes(); }

 private:
  // What a grant is to this rank.
  struct Part {
    uint32_t epoch = 0;
    PartFill fill;
    GrantSenders senders;
    bool told = false;  // How it ended, complete or not; nothing is taken any more.
  };
  struct Early {
    transfer::PeerId peer = 0;
    proto::KvPush push;
    std::unique_ptr<transfer::Landing> payload;
    absl::Time until;
  };

  std::unique_ptr<transfer::Landing> OnMessage(transfer::PeerId peer,
                                               std::span<const std::byte> header,
                                               size_t payload_bytes) override;
  void OnPayload(transfer::PeerId peer, std::span<const std::byte> header,
                 std::unique_ptr<transfer::Landing> payload) override;
  void OnPeerDown(transfer::PeerId peer, const absl::Status& reason) override;

  void Open(const proto::OpenGrant& open);
  void Close(uint64_t grant_id);
  bool IsEarly(uint64_t grant_id, uint32_t epoch) const;
  // The part that a push of the peer is for. Null: it is counted, its sender told.
  Part* FindLive(PrefillPeer& peer, uint64_t grant_id, uint32_t epoch);
  void Store(PrefillPeer& peer, const proto::KvPush& push, std::span<const std::byte> payload);
  // Tells rank 0 how the part ended.
  void Tell(uint64_t grant_id, Part& part, const absl::Status& status);
  void DropEarly();
  void UpdateGauges();

  kv::KvArena& kv_;
  EventLoop& loop_;
  node::RankChannel& rank0_;
  const Options options_;
  std::unique_ptr<transfer::TransferEngine> engine_;
  transfer::TransferMetrics metrics_;
  PrefillPeers peers_;
  std::map<uint64_t, Part> parts_;  // By grant id.
  std::vector<Early> early_;
  TimerId early_timer_ = 0;
  // The last grants closed: what comes for them is late, not early.
  std::array<uint64_t, 256> closed_ = {};
  size_t next_closed_ = 0;
  std::map<uint64_t, kv::SwappedKv> copies_;
};

}  // namespace lynx::decode
