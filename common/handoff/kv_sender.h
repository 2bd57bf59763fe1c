#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/concurrency/event_loop.h"
#include "common/kv/kv_arena.h"
#include "common/node/rank_channel.h"
#include "common/proto/control.pb.h"
#include "common/proto/transfer.pb.h"
#include "common/transfer/handshake.h"
#include "common/transfer/transfer_engine.h"
#include "common/transfer/transfer_metrics.h"

namespace lynx::handoff {

// Sends finished KV to decode nodes: the sending side of docs/protocols/handoff.md. A prefill node
// has one, and so has a decode node, for the sequences that leave it when it drains.
//
// KV leaves straight from the arenas, or by way of a copy where the host cannot touch them. The
// caller holds the lease of all blocks it pushed until the hand-off's Done has run; only then does
// nothing read them any more. Begin, Push (as layers finish), Commit, and Done says how it ended:
//   OK                  decode has adopted the sequence.
//   Aborted, DataLoss   decode gave it up; try again under a new grant.
//   Unavailable         the decode node or the way to it is gone.
//   DeadlineExceeded    not over by the deadline.
//   FailedPrecondition  the two nodes do not fit together; the message names both values.
//   Cancelled           Abort() ended it.
//
// One connection per decode incarnation and address, opened by the first Begin, with a handshake
// before any traffic. When it fails, every hand-off on it fails and the next Begin opens a new one.
//
// Of each block it sends each rank that the grant names what that one shares with this rank. In a
// prefill node of several ranks each has a KvSender, and rank 0 tells the others what to send
// (RankSender); it alone commits, to the decode node's rank 0, also where neither holds any of the
// KV, and the hand-off's Done comes when all ranks are through with it. Of several attention
// replicas the ranks of the one that computes the prompt send.
//
// All calls and callbacks are on the loop. Destruction ends everything; callbacks that have not run
// never will, and afterwards nothing reads the arenas.
class KvSender final : private transfer::TransferEngine::Receiver {
 public:
  struct Options {
    absl::Duration handshake_timeout = absl::Seconds(5);
    // How long sends of a hand-off that is over may take before its connection is force-closed,
    // which fails every other hand-off on it.
    absl::Duration drain_timeout = absl::Seconds(1);
    // Per peer; its credit may be lower. Small enough for staging to stay in caches, and more than
    // a network holds between two nodes.
    int64_t max_bytes_in_flight = int64_t{16} << 20;
    int64_t max_message_bytes = int64_t{1} << 20;  // At least one block goes into a message.
    size_t max_handoffs = 4096;
    size_t max_peers = 256;
  };
  using HandoffId = uint64_t;
  using Done = std::function<void(const absl::Status&)>;

  // `kv`, `loop`, `registry` and `ranks` outlive the sender. `ranks`: of rank 0, the node's others;
  // null: there are none. Starts `engine`.
  KvSender(transfer::NodeIdentity self, kv::KvArena& kv,
           std::unique_ptr<transfer::TransferEngine> engine, EventLoop& loop,
           telemetry::Registry& registry, const Options& options,
           node::RankChannel* ranks = nullptr);
  ~KvSender() override;
  KvSender(const KvSender&) = delete;
  KvSender& operator=(const KvSender&) = delete;

  // Opens a hand-off of what this node's `replica` computes. `done` runs exactly once, never inside
  // a call to this object.
  //   InvalidArgument     the grant is malformed.
  //   FailedPrecondition  the grant's node has another compatibility hash.
  //   ResourceExhausted   too many hand-offs or peers.
  absl::StatusOr<HandoffId> Begin(const proto::GrantInfo& grant, absl::Time deadline, Done done,
                                  int32_t replica = 0);

  // Sends one layer of the sequence's blocks [first_block, first_block + blocks.size()), stored in
  // `blocks` of the arenas, which must be final. Each block of each layer once, none of the prefix
  // that decode holds, none that lies before what a row behind the prompt attends to.
  //   NotFound         the hand-off is over; Done has said or will say why.
  //   InvalidArgument  out of range, repeated, or after Commit: the hand-off is as before.
  absl::Status Push(HandoffId handoff, int32_t layer, int32_t first_block,
                    std::span<const kv::BlockId> blocks);

  // All such blocks up to body.blocks() have been pushed in every layer: hand over.
  //   NotFound, InvalidArgument (one was not pushed, or another was; committed before): as above.
  absl::Status Commit(HandoffId handoff, const proto::CommitBody& body);

  // Gives the hand-off up. Done(Cancelled) follows once nothing reads its blocks. Unknown ids are
  // ignored.
  void Abort(HandoffId handoff, const std::string& reason);

  // Of a rank other than 0: rank 0 says how the hand-off ended. Done(status) follows likewise.
  void Finish(HandoffId handoff, const absl::Status& status);

  // Of rank 0: what another rank has told.
  void OnRankMessage(int rank, const proto::RankMessage& message);

  size_t handoffs() const { return handoffs_.size(); }
  size_t peers() const { return peers_.size(); }
  transfer::TransferEngine& engine() { return *engine_; }

 private:
  using PeerKey = std::pair<Incarnation, std::string>;  // Incarnation, transfer address.
  struct Handoff;
  struct Item;
  struct Peer;

  std::unique_ptr<transfer::Landing> OnMessage(transfer::PeerId peer,
                                               std::span<const std::byte> header,
                                               size_t payload_bytes) override;
  void OnPayload(transfer::PeerId peer, std::span<const std::byte> header,
                 std::unique_ptr<transfer::Landing> payload) override;
  void OnPeerDown(transfer::PeerId peer, const absl::Status& reason) override;

  // Of Handoff::pushed.
  static size_t PushedBit(const Handoff& handoff, int32_t layer, int32_t block);
  // This is the rank of its node that commits.
  bool leads() const { return self_.layout.replica() == 0 && self_.layout.tp_rank() == 0; }
  // What this rank sends to each rank of the grant, of what `replica` computes. Of rank 0: first to
  // the rank that takes the commit, though it be nothing else.
  absl::StatusOr<std::vector<std::pair<std::string, transfer::CopyPlan>>> PlanLinks(
      const proto::GrantInfo& grant, int32_t replica) const;
  // Tells the other ranks of what the hand-off's replica does.
  void Tell(const Handoff& handoff, proto::RankMessage message);
  absl::StatusOr<Peer*> FindOrConnect(const PeerKey& key);
  void OnHandshakeReply(Peer& peer, const proto::HandshakeReply& reply);
  void OnCommitReply(Peer& peer, const proto::CommitReply& reply);
  void Pump(Peer& peer);
  void SendItem(Peer& peer, Handoff& handoff, Item& item);
  // `kv_bytes` of the bytes are KV.
  void OnSent(transfer::PeerId peer, HandoffId handoff, int64_t bytes, int64_t kv_bytes,
              const absl::Status& status);
  // Closes our end; hand-offs on it end with `status`.
  void ClosePeer(transfer::PeerId peer, const absl::Status& status);
  // The peer is gone from the engine already, or never mattered to it again.
  void ForgetPeer(transfer::PeerId peer, const absl::Status& status, bool failed = true);
  void OnTimer(HandoffId handoff);
  // It can succeed no more; the decode node is told.
  void Fail(Handoff& handoff, const absl::Status& status);
  // Decides how the hand-off ended, unless that is decided already.
  void End(Handoff& handoff, absl::Status status);
  // Reports an ended hand-off once its last send is over, on all ranks.
  void FinishIfIdle(HandoffId handoff);
  void SendAbort(const Handoff& handoff, const std::string& reason);
  void SendControl(transfer::PeerId peer, const proto::TransferHeader& header);
  void UpdateGauges();

  const transfer::NodeIdentity self_;
  kv::KvArena& kv_;
  EventLoop& loop_;
  const Options options_;
  node::RankChannel* const ranks_;
  std::unique_ptr<transfer::TransferEngine> engine_;
  transfer::TransferMetrics metrics_;
  std::map<transfer::PeerId, std::unique_ptr<Peer>> peers_;
  std::map<HandoffId, std::unique_ptr<Handoff>> handoffs_;
  std::deque<absl::Time> peer_failures_;  // Of the last minute.
  HandoffId next_handoff_ = 1;
  TimerId tick_ = 0;
  // Tasks posted to the loop hold it weakly, and do nothing once the sender is gone.
  std::shared_ptr<const bool> alive_ = std::make_shared<const bool>(true);
};

}  // namespace lynx::handoff
