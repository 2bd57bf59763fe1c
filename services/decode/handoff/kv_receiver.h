#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/dtype.h"
#include "common/concurrency/event_loop.h"
#include "common/kv/block_table.h"
#include "common/kv/kv_arena.h"
#include "common/node/rank_channel.h"
#include "common/proto/control.pb.h"
#include "common/proto/transfer.pb.h"
#include "common/transfer/handshake.h"
#include "common/transfer/staging_pool.h"
#include "common/transfer/transfer_engine.h"
#include "common/transfer/transfer_metrics.h"
#include "services/decode/handoff/part_fill.h"
#include "services/decode/handoff/prefill_peers.h"

namespace lynx::decode {

// A sequence whose KV is complete and verified in the blocks of `lease`.
struct Adopted {
  uint64_t sequence = 0;
  Incarnation router = 0;
  kv::BlockTable lease;  // As given to Reserve, held prefix included.
  proto::CommitBody body;
  // The KV that came is of this node's numeric class.
  bool same_class = false;
};

// The other ranks of a node. Of a single rank: nothing.
struct ReceiverRanks {
  node::RankChannel* channel = nullptr;
  std::vector<proto::RankEndpoint> endpoints;  // By rank; that of rank 0 without an address.
};

// Takes KV from prefill nodes: the decode side of docs/protocols/handoff.md.
//
// Payloads land in staging memory, are verified there and only then copied into the leased blocks,
// on the loop. So blocks may be freed at any moment between two tasks of the loop, whatever is
// still under way on the wire; staging stays quarantined until the transport lets go of it.
//
// A sequence is adopted only when the commit and, of every layer, every block that a row behind the
// prompt attends to have arrived and matched their checksums. Each grant ends exactly once:
// OnAdopt, OnFailed, or Cancel.
//
// In a node of several ranks this is rank 0's: it takes the heads that this rank holds, and a
// RankReceiver of each other rank those of that one, in blocks of the same ids. Of several
// attention replicas the ranks of one fill a grant; the commit comes here, also where another
// replica's do.
//
// All calls and callbacks are on the loop. Destruction ends everything without callbacks.
class KvReceiver final : private transfer::TransferEngine::Receiver {
 public:
  class Handler {
   public:
    virtual ~Handler() = default;
    virtual void OnAdopt(Adopted adopted) = 0;
    // The grant is dead and its blocks are free; prefill has been told.
    //   DeadlineExceeded  not complete when the lease ran out.
    //   DataLoss          damaged or missing.
    //   Aborted           the held prefix is of other tokens than the prompt.
    //   ResourceExhausted, InvalidArgument  the prefill node broke the protocol.
    virtual void OnFailed(uint64_t sequence, Incarnation router, const absl::Status& status) = 0;
  };

  struct Options {
    // Payload bytes that one prefill node may have on the wire, and in all.
    int64_t credit_bytes = int64_t{64} << 20;
    int64_t staging_bytes = int64_t{1} << 30;
    // How long blocks that a commit still misses may take: they may have been overtaken.
    absl::Duration commit_grace = absl::Seconds(1);
    size_t max_peers = 256;
    size_t max_grants = 4096;
  };

  struct Request {
    uint64_t sequence = 0;
    Incarnation router = 0;
    int32_t prompt_tokens = 0;  // > 0
    // What `lease` holds the KV of already: whole blocks, at least one token less than the prompt.
    // A prompt that begins otherwise is not adopted.
    std::vector<TokenId> held_prefix;
    absl::Duration lease_time;  // The grant dies unless extended, or adopted, by then.
    kv::BlockTable lease;       // Holds what rows behind the prompt attend to, at least.
    int32_t replica = 0;        // The attention replica whose blocks these are.
  };

  // `kv`, `loop`, `registry`, `handler` and the channel outlive the receiver. Starts `engine`.
  KvReceiver(transfer::NodeIdentity self, kv::KvArena& kv,
             std::unique_ptr<transfer::TransferEngine> engine, EventLoop& loop,
             telemetry::Registry& registry, Handler& handler, const Options& options,
             ReceiverRanks ranks = {});
  ~KvReceiver() override;
  KvReceiver(const KvReceiver&) = delete;
  KvReceiver& operator=(const KvReceiver&) = delete;

  // Promises the blocks of request.lease to one hand-off. A live sequence gets its grant again, at
  // its present epoch and extended, and the new lease is given back.
  //   InvalidArgument    the request is malformed.
  //   AlreadyExists      the sequence is live with another router, prompt length or prefix.
  //   ResourceExhausted  too many grants.
  absl::StatusOr<proto::GrantInfo> Reserve(Request request);

  // The grant of a live sequence, so that a repeated Reserve need not lease blocks first.
  std::optional<proto::GrantInfo> FindGrant(uint64_t sequence) const;

  // The sequence's router still wants it: its grant lives at least `lease_time` from now. Unknown
  // and adopted sequences are ignored.
  void Extend(uint64_t sequence, absl::Duration lease_time);

  // Ends the sequence's grant, tells its prefill node, frees its blocks now. No callback. Unknown
  // and adopted sequences are ignored.
  void Cancel(uint64_t sequence);

  // What another rank has told.
  void OnRankMessage(int rank, const proto::RankMessage& message);

  size_t grants() const { return grants_.size(); }
  size_t peers() const { return peers_.size(); }
  size_t staging_bytes() const { return peers_.staging().used_bytes(); }
  size_t quarantined_bytes() const { return peers_.staging().quarantined_bytes(); }
  transfer::TransferEngine& engine() { return *engine_; }

 private:
  struct Grant;

  std::unique_ptr<transfer::Landing> OnMessage(transfer::PeerId peer,
                                               std::span<const std::byte> header,
                                               size_t payload_bytes) override;
  void OnPayload(transfer::PeerId peer, std::span<const std::byte> header,
                 std::unique_ptr<transfer::Landing> payload) override;
  void OnPeerDown(transfer::PeerId peer, const absl::Status& reason) override;

  std::unique_ptr<transfer::Landing> OnKvPush(PrefillPeer& peer, const proto::KvPush& push,
                                              size_t payload_bytes);
  std::unique_ptr<transfer::Landing> OnCommit(PrefillPeer& peer, const proto::Commit& commit,
                                              size_t payload_bytes);
  void OnAbort(PrefillPeer& peer, const proto::Abort& abort);
  void OnKvPayload(PrefillPeer& peer, const proto::KvPush& push,
                   std::span<const std::byte> payload);
  void OnCommitPayload(PrefillPeer& peer, const proto::Commit& commit,
                       std::span<const std::byte> payload);

  // The live grant that a message of `peer` is for, which from then on takes data of that peer's
  // node only. Null when there is none: the message is counted, its sender told.
  Grant* FindLive(PrefillPeer& peer, uint64_t grant_id, uint32_t epoch);
  std::unique_ptr<transfer::Landing> Land(Grant& grant, const PrefillPeer& peer, size_t bytes);
  absl::Status CheckCommitBody(const Grant& grant, const proto::CommitBody& body) const;
  // Whether the prompt begins as the held prefix does. A hash may have said so wrongly.
  absl::Status CheckHeldPrefix(const Grant& grant, const proto::CommitBody& body) const;
  void AdoptIfComplete(Grant& grant);
  // [first, past) The ranks of the node that fill the grant.
  std::pair<int, int> RanksOf(const Grant& grant) const;
  bool OtherRanksFilled(const Grant& grant) const;
  // Tells the other ranks that fill the grant.
  void Tell(const Grant& grant, proto::RankMessage message);
  void OnGrace(uint64_t grant_id);
  void OnLeaseTimer(uint64_t grant_id);
  // Ends the grant: frees its blocks, tells prefill, then the handler.
  void Fail(Grant& grant, const absl::Status& status);
  // Ends the grant's epoch: what it has received is void, the next one starts from nothing.
  void Fence(Grant& grant);
  // The same, telling those that have sent.
  void Refill(Grant& grant, const absl::Status& why);
  void ForgetData(Grant& grant);
  std::unique_ptr<Grant> Remove(Grant& grant);
  void OpenOnOtherRanks(const Grant& grant);
  void ReplyToSenders(const Grant& grant, const absl::Status& status);
  proto::GrantInfo Describe(const Grant& grant) const;
  void UpdateGauges();

  kv::KvArena& kv_;
  EventLoop& loop_;
  Handler& handler_;
  const Options options_;
  ReceiverRanks ranks_;
  std::unique_ptr<transfer::TransferEngine> engine_;
  transfer::TransferMetrics metrics_;
  PrefillPeers peers_;
  std::map<uint64_t, std::unique_ptr<Grant>> grants_;  // By grant id.
  std::map<uint64_t, uint64_t> by_sequence_;           // Grant ids.
  // The last grants adopted, so that a repeated commit hears the same answer.
  std::array<uint64_t, 256> adopted_ = {};
  size_t next_adopted_ = 0;
  TimerId tick_ = 0;
};

}  // namespace lynx::decode
