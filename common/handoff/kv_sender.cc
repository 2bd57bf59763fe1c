#include "common/handoff/kv_sender.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/status_macros.h"
#include "common/rpc/channel.h"
#include "common/telemetry/log.h"
#include "common/transfer/checksum.h"

namespace lynx::handoff {
namespace {

using telemetry::LogInfo;
using transfer::PeerId;

// Checksums of one message: what fits into a header with room to spare.
constexpr int64_t kMaxBlocksPerMessage = 256;
static_assert(kMaxBlocksPerMessage * 8 + 1024 <= transfer::kMaxHeaderBytes);
constexpr int32_t kMaxGrantBlocks = 1 << 20;
constexpr size_t kMaxReasonBytes = 256;
constexpr absl::Duration kTick = absl::Seconds(1);
constexpr absl::Duration kFailureMemory = absl::Minutes(1);

}  // namespace

// Part of a hand-off that waits for room on its connection.
struct KvSender::Item {
  HandoffId handoff = 0;
  int32_t layer = 0;
  int32_t first_block = 0;
  std::vector<kv::BlockId> blocks;
  std::shared_ptr<const transfer::CopyPlan> plan;  // Of each block; null: there are none.
  std::shared_ptr<const std::string> commit_body;  // Set: the commit; without blocks, what opens.
};

struct KvSender::Peer {
  PeerId id = 0;
  PeerKey key;
  bool ready = false;  // The handshake has succeeded.
  int64_t credit = 0;  // Bytes that may be in flight.
  int64_t in_flight = 0;
  std::deque<Item> queue;
  std::set<HandoffId> handoffs;
  absl::Time since;
  TimerId handshake_timer = 0;
  uint64_t pattern_checksum = 0;
};

struct KvSender::Handoff {
  HandoffId id = 0;
  proto::GrantInfo grant;
  int32_t replica = 0;  // Of this node.
  struct Link {
    PeerId peer = 0;                                 // May be gone.
    std::shared_ptr<const transfer::CopyPlan> plan;  // No slices: the commit alone.
    int sends = 0;                                   // In the engine.
  };
  std::vector<Link> links;  // To ranks of the decode node; of rank 0 the first to its rank 0.
  absl::Time deadline;
  TimerId timer = 0;
  Done done;
  int32_t held_blocks = 0;
  std::vector<bool> pushed;  // [layer][block of the grant]
  int64_t pushed_count = 0;
  bool committed = false;
  int64_t bytes_sending = 0;  // In the engine.
  int ranks_open = 0;         // Others that are not through with it.
  int64_t kv_bytes_sent = 0;
  absl::Time begun;
  std::optional<absl::Status> end;  // Decided; waiting for sends, and for other ranks.

  Link& LinkTo(PeerId peer) {
    return *std::find_if(links.begin(), links.end(),
                         [&](const Link& link) { return link.peer == peer; });
  }
  int sends() const {
    int sum = 0;
    for (const Link& link : links) sum += link.sends;
    return sum;
  }
};

size_t KvSender::PushedBit(const Handoff& handoff, int32_t layer, int32_t block) {
  return static_cast<size_t>(layer) * static_cast<size_t>(handoff.grant.blocks()) +
         static_cast<size_t>(block);
}

KvSender::KvSender(transfer::NodeIdentity self, kv::KvArena& kv,
                   std::unique_ptr<transfer::TransferEngine> engine, EventLoop& loop,
                   telemetry::Registry& registry, const Options& options, node::RankChannel* ranks)
    : self_(std::move(self)),
      kv_(kv),
      loop_(loop),
      options_(options),
      ranks_(ranks),
      engine_(std::move(engine)),
      metrics_(registry, "send", engine_->TransportName()) {
  engine_->Start(*this);
}

KvSender::~KvSender() {
  alive_.reset();
  engine_.reset();
  loop_.CancelTimer(tick_);
  for (auto& [id, peer] : peers_) loop_.CancelTimer(peer->handshake_timer);
  for (auto& [id, handoff] : handoffs_) loop_.CancelTimer(handoff->timer);
}

absl::StatusOr<std::vector<std::pair<std::string, transfer::CopyPlan>>> KvSender::PlanLinks(
    const proto::GrantInfo& grant, int32_t replica) const {
  std::vector<std::pair<std::string, transfer::CopyPlan>> links;
  const int32_t ranks = std::max(1, grant.ranks_size());
  for (int32_t rank = 0; rank < ranks && replica == self_.layout.replica(); ++rank) {
    proto::LayoutDescriptor to = self_.layout;
    to.set_tp_size(ranks);
    to.set_tp_rank(rank);
    to.set_head_begin(grant.ranks().empty() ? 0 : grant.ranks(rank).head_begin());
    to.set_head_end(grant.ranks().empty() ? to.kv_heads_total() : grant.ranks(rank).head_end());
    LYNX_ASSIGN_OR_RETURN(transfer::CopyPlan plan, transfer::PlanCopy(self_.layout, to));
    if (plan.slices.empty()) continue;
    links.emplace_back(
        grant.ranks().empty() ? grant.transfer_address() : grant.ranks(rank).transfer_address(),
        std::move(plan));
  }
  if (!leads()) return links;
  const auto rank0 =
      std::ranges::find(links, grant.transfer_address(), [](auto& link) { return link.first; });
  if (rank0 == links.end()) {
    links.emplace(links.begin(), grant.transfer_address(), transfer::CopyPlan());
  } else {
    std::rotate(links.begin(), rank0, std::next(rank0));
  }
  return links;
}

void KvSender::Tell(const Handoff& handoff, proto::RankMessage message) {
  if (ranks_ == nullptr) return;
  message.set_replica(handoff.replica);
  ranks_->Tell(message);
}

absl::StatusOr<KvSender::HandoffId> KvSender::Begin(const proto::GrantInfo& grant,
                                                    absl::Time deadline, Done done,
                                                    int32_t replica) {
  if (grant.blocks() <= 0 || grant.blocks() > kMaxGrantBlocks || grant.held_prefix_tokens() < 0 ||
      grant.held_prefix_tokens() % kv::kBlockTokens != 0 ||
      grant.held_prefix_tokens() / kv::kBlockTokens > grant.blocks()) {
    return absl::InvalidArgumentError(absl::StrCat("grant ", HexId(grant.grant_id()), " of ",
                                                   grant.blocks(), " blocks with a held prefix of ",
                                                   grant.held_prefix_tokens(), " tokens"));
  }
  LYNX_RETURN_IF_ERROR(
      transfer::CheckCompatibility(self_.compatibility_hash, grant.compatibility_hash()));
  if (handoffs_.size() >= options_.max_handoffs) {
    return absl::ResourceExhaustedError(
        absl::StrCat(handoffs_.size(), " hand-offs are under way, the limit"));
  }
  LYNX_ASSIGN_OR_RETURN(auto planned, PlanLinks(grant, replica));
  std::vector<Handoff::Link> links;
  for (auto& [address, plan] : planned) {
    LYNX_ASSIGN_OR_RETURN(const Peer* peer, FindOrConnect({grant.decode_incarnation(), address}));
    links.push_back({peer->id, std::make_shared<const transfer::CopyPlan>(std::move(plan))});
  }

  auto handoff = std::make_unique<Handoff>();
  const HandoffId id = next_handoff_++;
  handoff->id = id;
  handoff->grant = grant;
  handoff->replica = replica;
  handoff->links = std::move(links);
  handoff->deadline = deadline;
  handoff->done = std::move(done);
  handoff->held_blocks = grant.held_prefix_tokens() / kv::kBlockTokens;
  handoff->pushed.resize(static_cast<size_t>(kv_.layout().layers) *
                         static_cast<size_t>(grant.blocks()));
  handoff->begun = loop_.Now();
  handoff->timer = loop_.RunAfter(deadline - loop_.Now(), [this, id] { OnTimer(id); });
  for (const Handoff::Link& link : handoff->links) peers_.at(link.peer)->handoffs.insert(id);
  if (ranks_ != nullptr) {
    handoff->ranks_open = self_.layout.tp_size() - (replica == 0 ? 1 : 0);
    proto::RankMessage message;
    proto::BeginHandoff& begin = *message.mutable_begin_handoff();
    begin.set_handoff(id);
    *begin.mutable_grant() = grant;
    begin.set_deadline_us(absl::ToInt64Microseconds(deadline - handoff->begun));
    Tell(*handoff, std::move(message));
  }
  const std::vector<Handoff::Link>& to = handoff->links;
  handoffs_[id] = std::move(handoff);
  if (!to.empty() && to[0].plan->slices.empty()) {
    // Its rank 0 is to know whose hand-off it is before the commit.
    Peer& peer = *peers_.at(to[0].peer);
    Item& open = peer.queue.emplace_back();
    open.handoff = id;
    Pump(peer);
  }
  UpdateGauges();
  return id;
}

absl::StatusOr<KvSender::Peer*> KvSender::FindOrConnect(const PeerKey& key) {
  std::vector<PeerId> former;
  for (auto& [id, peer] : peers_) {
    if (peer->key == key) return peer.get();
    if (peer->key.second == key.second) former.push_back(id);
  }
  // Another incarnation at the same address: the process that the old connection led to is gone.
  for (PeerId id : former) {
    ClosePeer(id, absl::UnavailableError("the decode node has been restarted"));
  }
  if (peers_.size() >= options_.max_peers) {
    // Make room by an idle connection: it costs a handshake to have it again.
    auto idle = std::find_if(peers_.begin(), peers_.end(),
                             [](const auto& entry) { return entry.second->handoffs.empty(); });
    if (idle == peers_.end()) {
      return absl::ResourceExhaustedError(
          absl::StrCat(peers_.size(), " decode nodes are connected, the limit"));
    }
    ClosePeer(idle->first, absl::UnavailableError("closed to make room"));
  }

  LYNX_ASSIGN_OR_RETURN(const PeerId id, engine_->Connect(key.second));
  auto peer = std::make_unique<Peer>();
  peer->id = id;
  peer->key = key;
  peer->since = loop_.Now();
  peer->handshake_timer = loop_.RunAfter(options_.handshake_timeout, [this, id] {
    ClosePeer(
        id, absl::UnavailableError(absl::StrCat("no answer to the handshake within ",
                                                absl::FormatDuration(options_.handshake_timeout))));
  });
  auto pattern =
      std::make_shared<const std::vector<std::byte>>(transfer::SelfTestPattern(self_.incarnation));
  peer->pattern_checksum = transfer::Checksum(*pattern);
  proto::TransferHeader header = transfer::MakeHeader(self_.incarnation, key.first);
  *header.mutable_handshake() = transfer::MakeHandshake(self_);
  // The answer, or its timer, says what became of it; the callback only keeps the pattern alive.
  engine_->Send(id, header.SerializeAsString(), {*pattern}, [pattern](const absl::Status&) {});
  return (peers_[id] = std::move(peer)).get();
}

absl::Status KvSender::Push(HandoffId id, int32_t layer, int32_t first_block,
                            std::span<const kv::BlockId> blocks) {
  auto it = handoffs_.find(id);
  if (it == handoffs_.end() || it->second->end.has_value()) {
    return absl::NotFoundError(absl::StrCat("hand-off ", id, " is over"));
  }
  Handoff& handoff = *it->second;
  const int64_t count = static_cast<int64_t>(blocks.size());
  const auto bad = [&](const std::string& why) {
    return absl::InvalidArgumentError(absl::StrCat("push of ", count, " blocks from ", first_block,
                                                   " in layer ", layer, " of hand-off ", id, ": ",
                                                   why));
  };
  if (handoff.committed) return bad("already committed");
  if (layer < 0 || layer >= kv_.layout().layers) {
    return bad(absl::StrCat("there are ", kv_.layout().layers, " layers"));
  }
  if (count == 0 || first_block < handoff.held_blocks ||
      first_block + count > handoff.grant.blocks()) {
    return bad(absl::StrCat("the grant wants blocks ", handoff.held_blocks, " to ",
                            handoff.grant.blocks()));
  }
  const size_t base = PushedBit(handoff, layer, first_block);
  for (size_t i = 0; i < blocks.size(); ++i) {
    if (blocks[i] < 0 || blocks[i] >= kv_.blocks()) return bad("no such block in the arena");
    if (handoff.pushed[base + i]) return bad("pushed before");
  }
  for (size_t i = 0; i < blocks.size(); ++i) handoff.pushed[base + i] = true;
  handoff.pushed_count += count;
  for (const Handoff::Link& link : handoff.links) {
    if (link.plan->slices.empty()) continue;
    Peer& peer = *peers_.at(link.peer);  // Were it gone, the hand-off would have ended.
    peer.queue.push_back(
        {id, layer, first_block, {blocks.begin(), blocks.end()}, link.plan, nullptr});
    Pump(peer);
  }
  if (ranks_ != nullptr) {
    proto::RankMessage message;
    proto::PushKv& push = *message.mutable_push_kv();
    push.set_handoff(id);
    push.set_layer(layer);
    push.set_first_block(first_block);
    push.mutable_blocks()->Assign(blocks.begin(), blocks.end());
    Tell(handoff, std::move(message));
  }
  return absl::OkStatus();
}

absl::Status KvSender::Commit(HandoffId id, const proto::CommitBody& body) {
  auto it = handoffs_.find(id);
  if (it == handoffs_.end() || it->second->end.has_value()) {
    return absl::NotFoundError(absl::StrCat("hand-off ", id, " is over"));
  }
  Handoff& handoff = *it->second;
  const kv::KvGroups& groups = kv_.layout().groups;
  const int32_t tokens = body.prompt_size() + body.output_size();
  int64_t want = 0;
  int64_t wanted_pushed = 0;
  for (int32_t layer = 0; layer < kv_.layout().layers; ++layer) {
    const int32_t first =
        std::max(handoff.held_blocks, groups.FirstBlock(groups.group_of(layer), tokens));
    for (int32_t block = first; block < std::min(body.blocks(), handoff.grant.blocks()); ++block) {
      want += 1;
      wanted_pushed += handoff.pushed[PushedBit(handoff, layer, block)] ? 1 : 0;
    }
  }
  const bool in_grant =
      body.blocks() > handoff.held_blocks && body.blocks() <= handoff.grant.blocks();
  if (handoff.committed || !in_grant || wanted_pushed != want || handoff.pushed_count != want) {
    return absl::InvalidArgumentError(
        absl::StrCat("commit of ", body.blocks(), " blocks for hand-off ", id, ": ", wanted_pushed,
                     " of the ", want, " blocks of all layers that are to be were pushed, and ",
                     handoff.pushed_count - wanted_pushed, " others",
                     handoff.committed ? "; committed before" : ""));
  }
  handoff.committed = true;
  Peer& peer = *peers_.at(handoff.links[0].peer);
  peer.queue.push_back(
      {id, 0, 0, {}, nullptr, std::make_shared<const std::string>(body.SerializeAsString())});
  Pump(peer);
  return absl::OkStatus();
}

void KvSender::Abort(HandoffId id, const std::string& reason) {
  auto it = handoffs_.find(id);
  if (it != handoffs_.end()) Fail(*it->second, absl::CancelledError(reason));
}

void KvSender::Finish(HandoffId id, const absl::Status& status) {
  auto it = handoffs_.find(id);
  if (it != handoffs_.end()) End(*it->second, status);
}

void KvSender::OnRankMessage(int rank, const proto::RankMessage& message) {
  if (!message.has_handoff_ended()) return;
  const proto::EndHandoff& ended = message.handoff_ended();
  auto it = handoffs_.find(ended.handoff());
  LYNX_CHECK(it != handoffs_.end());  // It waits for each rank.
  it->second->ranks_open -= 1;
  if (ended.status_code() != 0) {
    Fail(*it->second, transfer::StatusFromReply(
                          ended.status_code(), absl::StrCat("rank ", rank, ": ", ended.message())));
  }
  FinishIfIdle(ended.handoff());
}

void KvSender::Fail(Handoff& handoff, const absl::Status& status) {
  if (handoff.end.has_value()) return;
  SendAbort(handoff, std::string(status.message()));
  End(handoff, status);
}

void KvSender::SendAbort(const Handoff& handoff, const std::string& reason) {
  if (!leads()) return;  // Rank 0 does.
  auto peer = peers_.find(handoff.links[0].peer);
  if (peer == peers_.end() || !peer->second->ready) return;
  proto::TransferHeader header =
      transfer::MakeHeader(self_.incarnation, handoff.grant.decode_incarnation());
  header.mutable_abort()->set_grant_id(handoff.grant.grant_id());
  header.mutable_abort()->set_epoch(handoff.grant.epoch());
  header.mutable_abort()->set_message(
      transfer::ReplyMessage(absl::CancelledError(reason)).substr(0, kMaxReasonBytes));
  SendControl(peer->first, header);
}

void KvSender::SendControl(PeerId peer, const proto::TransferHeader& header) {
  // Best effort: whoever waits for the effect has a deadline.
  engine_->Send(peer, header.SerializeAsString(), {}, [](const absl::Status&) {});
}

void KvSender::Pump(Peer& peer) {
  if (!peer.ready) return;
  while (!peer.queue.empty()) {
    Item& item = peer.queue.front();
    auto it = handoffs_.find(item.handoff);
    if (it == handoffs_.end() || it->second->end.has_value()) {
      peer.queue.pop_front();
      continue;
    }
    Item part;
    int64_t bytes = 0;
    const bool has_blocks = item.plan != nullptr;
    const int64_t block_bytes = has_blocks ? item.plan->block_bytes : 0;
    if (!has_blocks) {
      bytes = item.commit_body == nullptr ? 0 : static_cast<int64_t>(item.commit_body->size());
    } else {
      const int64_t most =
          std::clamp(std::min(options_.max_message_bytes, peer.credit) / block_bytes, int64_t{1},
                     kMaxBlocksPerMessage);
      bytes = block_bytes * std::min(most, static_cast<int64_t>(item.blocks.size()));
    }
    if (peer.in_flight > 0 && peer.in_flight + bytes > peer.credit) return;
    if (!has_blocks) {
      part = std::move(item);
      peer.queue.pop_front();
    } else {
      const auto count = static_cast<std::ptrdiff_t>(bytes / block_bytes);
      part = {item.handoff,     item.layer,
              item.first_block, {item.blocks.begin(), item.blocks.begin() + count},
              item.plan,        nullptr};
      if (count == static_cast<std::ptrdiff_t>(item.blocks.size())) {
        peer.queue.pop_front();
      } else {
        item.blocks.erase(item.blocks.begin(), item.blocks.begin() + count);
        item.first_block += static_cast<int32_t>(count);
      }
    }
    SendItem(peer, *it->second, part);
  }
}

void KvSender::SendItem(Peer& peer, Handoff& handoff, Item& item) {
  proto::TransferHeader header = transfer::MakeHeader(self_.incarnation, peer.key.first);
  std::vector<std::span<const std::byte>> payload;
  std::shared_ptr<std::vector<std::byte>> copied;  // Of an arena that the host cannot touch.
  absl::Status read;
  int64_t bytes = 0;
  if (item.commit_body != nullptr) {
    proto::Commit& commit = *header.mutable_commit();
    commit.set_grant_id(handoff.grant.grant_id());
    commit.set_epoch(handoff.grant.epoch());
    payload.push_back(std::as_bytes(std::span(*item.commit_body)));
    commit.set_body_checksum(transfer::Checksum(payload.back()));
  } else if (item.plan == nullptr) {
    header.mutable_open()->set_grant_id(handoff.grant.grant_id());
    header.mutable_open()->set_epoch(handoff.grant.epoch());
  } else {
    proto::KvPush& push = *header.mutable_kv_push();
    push.set_grant_id(handoff.grant.grant_id());
    push.set_epoch(handoff.grant.epoch());
    push.set_layer(item.layer);
    push.set_first_block(item.first_block);
    const auto each = static_cast<size_t>(kv_.layout().BlockLayerBytes());
    if (kv_.remote()) {
      copied = std::make_shared<std::vector<std::byte>>(item.blocks.size() * each);
      std::vector<kv::KvArena::Part> parts;
      for (kv::BlockId block : item.blocks) parts.push_back(kv_.WholeBlock(item.layer, block));
      read = kv_.Read(parts, copied->data());
    }
    for (size_t i = 0; i < item.blocks.size(); ++i) {
      const size_t first = payload.size();
      const std::span<const std::byte> from =
          copied == nullptr ? kv_.BlockLayerSpan(item.layer, item.blocks[i])
                            : std::span<const std::byte>(*copied).subspan(i * each, each);
      for (const transfer::CopySlice& slice : item.plan->slices) {
        payload.push_back(
            from.subspan(static_cast<size_t>(slice.from), static_cast<size_t>(slice.bytes)));
      }
      push.add_checksums(transfer::Checksum(std::span(payload).subspan(first)));
    }
  }
  for (const auto& part : payload) bytes += static_cast<int64_t>(part.size());
  peer.in_flight += bytes;
  handoff.LinkTo(peer.id).sends += 1;
  handoff.bytes_sending += bytes;
  auto sent = [this, peer_id = peer.id, id = handoff.id, bytes, body = item.commit_body,
               copied](const absl::Status& status) {
    OnSent(peer_id, id, bytes, body == nullptr ? bytes : 0, status);
  };
  if (!read.ok()) {
    loop_.Post([alive = std::weak_ptr(alive_), sent, read] {
      if (!alive.expired()) sent(read);
    });
    return;
  }
  engine_->Send(peer.id, header.SerializeAsString(), std::move(payload), std::move(sent));
}

void KvSender::OnSent(PeerId peer_id, HandoffId id, int64_t bytes, int64_t kv_bytes,
                      const absl::Status& status) {
  auto peer = peers_.find(peer_id);
  if (peer != peers_.end()) peer->second->in_flight -= bytes;
  Handoff& handoff = *handoffs_.at(id);  // Kept until its last send is over.
  handoff.LinkTo(peer_id).sends -= 1;
  handoff.bytes_sending -= bytes;
  if (status.ok()) {
    handoff.kv_bytes_sent += kv_bytes;
  } else {
    Fail(handoff, absl::UnavailableError(
                      absl::StrCat("a send failed: ", absl::string_view(status.message()))));
  }
  FinishIfIdle(id);
  peer = peers_.find(peer_id);
  if (peer != peers_.end()) Pump(*peer->second);
}

std::unique_ptr<transfer::Landing> KvSender::OnMessage(PeerId peer_id,
                                                       std::span<const std::byte> bytes,
                                                       size_t payload_bytes) {
  absl::StatusOr<proto::TransferHeader> header = transfer::ParseHeader(bytes);
  if (!header.ok()) {
    metrics_.OnDropped(transfer::Drop::kMalformed);
    return nullptr;
  }
  if (header->has_handshake()) {
    // Somebody takes this node for a decode node.
    metrics_.OnDropped(transfer::Drop::kRole);
    proto::TransferHeader reply = transfer::MakeHeader(self_.incarnation, header->sender());
    reply.mutable_handshake_reply()->set_message(
        "role differs: the sender wants a decode node that takes KV, this end sends it, as a "
        "prefill "
        "node does");
    reply.mutable_handshake_reply()->set_status_code(
        static_cast<uint32_t>(absl::StatusCode::kFailedPrecondition));
    SendControl(peer_id, reply);
    return nullptr;
  }
  auto it = peers_.find(peer_id);
  if (it == peers_.end()) {
    metrics_.OnDropped(transfer::Drop::kUnknownPeer);
    return nullptr;
  }
  Peer& peer = *it->second;
  if (header->has_handshake_reply() && !peer.ready) {
    // Whatever its version and incarnation: a refusal must be readable by all.
    if (header->handshake_reply().accepted() &&
        (header->version() != rpc::kProtocolVersion || header->sender() != peer.key.first)) {
      metrics_.OnDropped(transfer::Drop::kIncarnation);
      return nullptr;
    }
    OnHandshakeReply(peer, header->handshake_reply());
    return nullptr;
  }
  if (header->version() != rpc::kProtocolVersion) {
    metrics_.OnDropped(transfer::Drop::kVersion);
    return nullptr;
  }
  if (header->sender() != peer.key.first || header->receiver() != self_.incarnation) {
    metrics_.OnDropped(transfer::Drop::kIncarnation);
    return nullptr;
  }
  if (header->has_commit_reply() && payload_bytes == 0) {
    OnCommitReply(peer, header->commit_reply());
  } else {
    metrics_.OnDropped(transfer::Drop::kUnexpected);
  }
  return nullptr;
}

void KvSender::OnPayload(PeerId, std::span<const std::byte>, std::unique_ptr<transfer::Landing>) {
  LYNX_CHECK_MSG(false, "a payload arrived for which no memory was given");
}

void KvSender::OnHandshakeReply(Peer& peer, const proto::HandshakeReply& reply) {
  // What this end sends at the least; the sum over all of the peer's heads is no less.
  const int64_t block_bytes = kv_.layout().BlockLayerBytes();
  if (!reply.accepted()) {
    ClosePeer(peer.id,
              transfer::StatusFromReply(
                  reply.status_code(), absl::StrCat("the decode node refused: ", reply.message())));
    return;
  }
  if (reply.pattern_checksum() != peer.pattern_checksum) {
    ClosePeer(peer.id,
              absl::DataLossError(absl::StrCat(
                  "the self-test pattern arrived damaged: its checksum is ",
                  HexId(reply.pattern_checksum()), ", not ", HexId(peer.pattern_checksum))));
    return;
  }
  if (reply.credit_bytes() < static_cast<uint64_t>(block_bytes)) {
    ClosePeer(peer.id, absl::FailedPreconditionError(
                           absl::StrCat("the decode node's credit is ", reply.credit_bytes(),
                                        " bytes, one block of one layer has ", block_bytes)));
    return;
  }
  loop_.CancelTimer(peer.handshake_timer);
  peer.ready = true;
  peer.credit = static_cast<int64_t>(std::min<uint64_t>(
      reply.credit_bytes(), static_cast<uint64_t>(options_.max_bytes_in_flight)));
  metrics_.OnHandshake(loop_.Now() - peer.since);
  LogInfo("connected to a decode node",
          {{"peer_incarnation", HexId(peer.key.first)}, {"transport", engine_->TransportName()}});
  UpdateGauges();
  Pump(peer);
}

void KvSender::OnCommitReply(Peer& peer, const proto::CommitReply& reply) {
  for (HandoffId id : peer.handoffs) {
    Handoff& handoff = *handoffs_.at(id);
    if (handoff.grant.grant_id() != reply.grant_id() || handoff.grant.epoch() != reply.epoch()) {
      continue;
    }
    // Nonsense: nothing to adopt yet, or of another rank than that which commits.
    if (reply.status_code() == 0 && (!handoff.committed || handoff.links[0].peer != peer.id)) {
      break;
    }
    const absl::Status status =
        reply.status_code() == 0 ? absl::OkStatus()
                                 : transfer::StatusFromReply(reply.status_code(), reply.message());
    if (handoff.links[0].peer == peer.id) {
      End(handoff, status);
    } else {
      Fail(handoff, status);  // The node's rank 0 need not know.
    }
    return;
  }
  metrics_.OnDropped(transfer::Drop::kLateReply);
}

void KvSender::OnPeerDown(PeerId peer, const absl::Status& reason) {
  if (absl::IsCancelled(reason)) {
    ForgetPeer(peer, absl::UnavailableError("the decode node closed the connection"),
               /*failed=*/false);
    return;
  }
  ForgetPeer(peer, absl::UnavailableError(absl::StrCat("the decode node is gone: ",
                                                       absl::string_view(reason.message()))));
}

void KvSender::ClosePeer(PeerId peer, const absl::Status& status) {
  engine_->Close(peer);
  ForgetPeer(peer, status);
}

void KvSender::ForgetPeer(PeerId id, const absl::Status& status, bool failed) {
  auto node = peers_.extract(id);
  if (node.empty()) return;
  Peer& peer = *node.mapped();
  loop_.CancelTimer(peer.handshake_timer);
  if (failed) peer_failures_.push_back(loop_.Now());
  telemetry::Log(failed ? telemetry::LogLevel::kWarning : telemetry::LogLevel::kInfo,
                 "connection to a decode node ended",
                 {{"peer_incarnation", HexId(peer.key.first)},
                  {"handoffs", absl::StrCat(peer.handoffs.size())},
                  {"status", status.ToString()}});
  const std::set<HandoffId> handoffs = std::exchange(peer.handoffs, {});
  for (HandoffId handoff : handoffs) Fail(*handoffs_.at(handoff), status);
  UpdateGauges();
}

void KvSender::OnTimer(HandoffId id) {
  Handoff& handoff = *handoffs_.at(id);
  const bool late = !handoff.end.has_value();
  const absl::Status status = absl::DeadlineExceededError(absl::StrCat(
      "hand-off of grant ", HexId(handoff.grant.grant_id()), " not over by its deadline"));
  if (late) metrics_.OnLeaseExpired();
  if (handoff.sends() == 0) {
    Fail(handoff, status);  // Or it waits for other ranks, which have timers of their own.
    return;
  }
  // The peer is stuck: only a force-close makes the transport let go of the blocks.
  if (late) Fail(handoff, status);
  const std::vector<Handoff::Link> links = handoff.links;
  for (const Handoff::Link& link : links) {
    if (link.sends == 0) continue;
    ClosePeer(link.peer,
              absl::UnavailableError("the connection was closed: the decode node is stuck"));
  }
}

void KvSender::End(Handoff& handoff, absl::Status status) {
  if (handoff.end.has_value()) return;
  handoff.end = std::move(status);
  loop_.CancelTimer(handoff.timer);
  const HandoffId id = handoff.id;
  handoff.timer = loop_.RunAfter(options_.drain_timeout, [this, id] { OnTimer(id); });
  if (ranks_ != nullptr) {
    proto::RankMessage message;
    proto::EndHandoff& end = *message.mutable_end_handoff();
    end.set_handoff(id);
    end.set_status_code(static_cast<uint32_t>(handoff.end->code()));
    end.set_message(transfer::ReplyMessage(*handoff.end));
    Tell(handoff, std::move(message));
  }
  FinishIfIdle(id);
}

void KvSender::FinishIfIdle(HandoffId id) {
  auto it = handoffs_.find(id);
  if (it == handoffs_.end() || !it->second->end.has_value() || it->second->sends() > 0 ||
      it->second->ranks_open > 0) {
    return;
  }
  const std::unique_ptr<Handoff> handoff = std::move(it->second);
  handoffs_.erase(it);
  loop_.CancelTimer(handoff->timer);
  for (const Handoff::Link& link : handoff->links) {
    auto peer = peers_.find(link.peer);
    if (peer != peers_.end()) peer->second->handoffs.erase(id);
  }
  metrics_.OnTransferEnd(*handoff->end, handoff->kv_bytes_sent, loop_.Now() - handoff->begun);
  UpdateGauges();
  loop_.Post(
      [alive = std::weak_ptr(alive_), done = std::move(handoff->done), status = *handoff->end] {
        if (!alive.expired()) done(status);
      });
}

void KvSender::UpdateGauges() {
  const absl::Time now = loop_.Now();
  while (!peer_failures_.empty() && peer_failures_.front() + kFailureMemory <= now) {
    peer_failures_.pop_front();
  }
  int64_t pending_bytes = 0;
  for (const auto& [id, handoff] : handoffs_) pending_bytes += handoff->bytes_sending;
  metrics_.SetPending(
      static_cast<int64_t>(handoffs_.size()), pending_bytes,
      handoffs_.empty() ? absl::ZeroDuration() : now - handoffs_.begin()->second->begun);
  const auto ready = std::count_if(peers_.begin(), peers_.end(),
                                   [](const auto& entry) { return entry.second->ready; });
  metrics_.SetPeers(static_cast<int64_t>(peers_.size()) - ready, ready,
                    static_cast<int64_t>(peer_failures_.size()));
  // Ages grow without events.
  if (tick_ == 0 && (!handoffs_.empty() || !peer_failures_.empty())) {
    tick_ = loop_.RunAfter(kTick, [this] {
      tick_ = 0;
      UpdateGauges();
    });
  }
}

}  // namespace lynx::handoff
