#include "services/decode/handoff/kv_receiver.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/proto/parse.h"
#include "common/rpc/channel.h"
#include "common/telemetry/log.h"
#include "common/transfer/checksum.h"

namespace lynx::decode {
namespace {

using transfer::Landing;
using transfer::PeerId;

// A commit holds the prompt's ids: 16 MiB is over three million of them.
constexpr size_t kMaxCommitBytes = size_t{16} << 20;
constexpr absl::Duration kTick = absl::Seconds(1);

}  // namespace

struct KvReceiver::Peer {
  PeerId id = 0;
  Incarnation incarnation = 0;
  bool same_class = false;
  transfer::CopyPlan plan;
  bool ready = false;  // The self-test pattern has arrived intact.
  absl::Time since;
  std::unique_ptr<transfer::StagingPool::Account> staging;
};

struct KvReceiver::Grant {
  uint64_t id = 0;
  uint32_t epoch = 1;
  Request request;
  int32_t first_block = 0;  // Of what may arrive: the held prefix comes before.
  int32_t end_block = 0;    // Of the prompt.
  int64_t wanted = 0;       // Blocks that are to arrive, of all layers.
  absl::Time deadline;
  absl::Duration lease_time;
  TimerId lease_timer = 0;

  // Of the present epoch:
  PeerId sender = 0;                // 0: no data yet.
  std::set<PeerId> former_senders;  // Superseded; refused for good.
  std::unique_ptr<transfer::StagingPool::Account> staging;
  std::vector<bool> verified;  // [layer][block - first_block]
  int64_t missing = 0;         // Of the wanted ones.
  int64_t bytes = 0;
  absl::Time begun;
  std::optional<proto::CommitBody> commit;
  TimerId grace_timer = 0;

  int32_t held_tokens() const { return static_cast<int32_t>(request.held_prefix.size()); }
};

KvReceiver::KvReceiver(transfer::NodeIdentity self, kv::KvShards kv,
                       std::unique_ptr<transfer::TransferEngine> engine, EventLoop& loop,
                       telemetry::Registry& registry, Handler& handler, const Options& options)
    : self_(std::move(self)),
      kv_(std::move(kv)),
      loop_(loop),
      handler_(handler),
      options_(options),
      staging_(static_cast<size_t>(options.staging_bytes)),
      engine_(std::move(engine)),
      metrics_(registry, "recv", engine_->TransportName()) {
  engine_->Start(*this);
}

KvReceiver::~KvReceiver() {
  engine_.reset();
  loop_.CancelTimer(tick_);
  for (auto& [id, grant] : grants_) {
    loop_.CancelTimer(grant->lease_timer);
    loop_.CancelTimer(grant->grace_timer);
  }
}

absl::StatusOr<proto::GrantInfo> KvReceiver::Reserve(Request request) {
  const uint64_t sequence = request.sequence;
  auto it = by_sequence_.find(sequence);
  if (it != by_sequence_.end()) {
    Grant& grant = *grants_.at(it->second);
    if (grant.request.router != request.router ||
        grant.request.prompt_tokens != request.prompt_tokens ||
        grant.request.held_prefix != request.held_prefix) {
      return absl::AlreadyExistsError(
          absl::StrCat("sequence ", HexId(sequence), " is live with another prompt or router"));
    }
    grant.deadline = std::max(grant.deadline, loop_.Now() + request.lease_time);
    return Describe(grant);
  }
  const int64_t blocks = request.lease.end_block();
  const auto held = static_cast<int64_t>(request.held_prefix.size());
  if (request.prompt_tokens <= 0 || held % kv::kBlockTokens != 0 || held >= request.prompt_tokens ||
      kv::BlocksFor(request.prompt_tokens) > blocks || request.lease_time <= absl::ZeroDuration()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "reservation of ", blocks, " blocks for a prompt of ", request.prompt_tokens,
        " tokens with a held prefix of ", held, " for ", absl::FormatDuration(request.lease_time)));
  }
  if (grants_.size() >= options_.max_grants) {
    return absl::ResourceExhaustedError(
        absl::StrCat(grants_.size(), " grants are live, the limit"));
  }
  auto grant = std::make_unique<Grant>();
  const uint64_t id = RandomId();
  grant->id = id;
  grant->first_block = static_cast<int32_t>(held / kv::kBlockTokens);
  grant->end_block = static_cast<int32_t>(kv::BlocksFor(request.prompt_tokens));
  grant->lease_time = request.lease_time;
  grant->deadline = loop_.Now() + request.lease_time;
  grant->request = std::move(request);
  const int32_t layers = kv_.layout().layers;
  for (int32_t layer = 0; layer < layers; ++layer) {
    grant->wanted += std::max(0, grant->end_block - FirstWanted(*grant, layer));
  }
  grant->missing = grant->wanted;
  grant->verified.resize(static_cast<size_t>(layers) *
                         static_cast<size_t>(grant->end_block - grant->first_block));
  grant->lease_timer =
      loop_.RunAfter(grant->deadline - loop_.Now(), [this, id] { OnLeaseTimer(id); });
  proto::GrantInfo info = Describe(*grant);
  by_sequence_[sequence] = id;
  LYNX_CHECK(grants_.emplace(id, std::move(grant)).second);
  UpdateGauges();
  return info;
}

proto::GrantInfo KvReceiver::Describe(const Grant& grant) const {
  proto::GrantInfo info;
  info.set_grant_id(grant.id);
  info.set_decode_incarnation(self_.incarnation);
  info.set_epoch(grant.epoch);
  info.set_transfer_address(engine_->LocalAddress());
  info.set_blocks(grant.request.lease.end_block());
  info.set_held_prefix_tokens(grant.held_tokens());
  info.set_compatibility_hash(self_.compatibility_hash);
  return info;
}

std::optional<proto::GrantInfo> KvReceiver::FindGrant(uint64_t sequence) const {
  auto it = by_sequence_.find(sequence);
  if (it == by_sequence_.end()) return std::nullopt;
  return Describe(*grants_.at(it->second));
}

void KvReceiver::Extend(uint64_t sequence, absl::Duration lease_time) {
  auto it = by_sequence_.find(sequence);
  if (it == by_sequence_.end()) return;
  Grant& grant = *grants_.at(it->second);
  grant.deadline = std::max(grant.deadline, loop_.Now() + lease_time);
}

void KvReceiver::Cancel(uint64_t sequence) {
  auto it = by_sequence_.find(sequence);
  if (it == by_sequence_.end()) return;
  Grant& grant = *grants_.at(it->second);
  const absl::Status status = absl::AbortedError("the sequence was cancelled");
  if (grant.sender != 0) {
    ReplyToCommit(grant.sender, grant.id, grant.epoch, status);
    metrics_.OnTransferEnd(status, grant.bytes, loop_.Now() - grant.begun);
  }
  Remove(grant);
  UpdateGauges();
}

std::unique_ptr<Landing> KvReceiver::OnMessage(PeerId peer_id, std::span<const std::byte> bytes,
                                               size_t payload_bytes) {
  absl::StatusOr<proto::TransferHeader> header = transfer::ParseHeader(bytes);
  if (!header.ok()) {
    metrics_.OnDropped(transfer::Drop::kMalformed);
    return nullptr;
  }
  if (header->has_handshake()) return OnHandshake(peer_id, *header, payload_bytes);
  if (header->version() != rpc::kProtocolVersion) {
    metrics_.OnDropped(transfer::Drop::kVersion);
    return nullptr;
  }
  auto it = peers_.find(peer_id);
  if (it == peers_.end() || !it->second->ready) {
    metrics_.OnDropped(transfer::Drop::kNoHandshake);
    return nullptr;
  }
  Peer& peer = *it->second;
  if (header->receiver() != self_.incarnation || header->sender() != peer.incarnation) {
    metrics_.OnDropped(transfer::Drop::kIncarnation);
    return nullptr;
  }
  switch (header->body_case()) {
    case proto::TransferHeader::kKvPush:
      return OnKvPush(peer, header->kv_push(), payload_bytes);
    case proto::TransferHeader::kCommit:
      return OnCommit(peer, header->commit(), payload_bytes);
    case proto::TransferHeader::kAbort:
      OnAbort(peer, header->abort());
      return nullptr;
    default:
      metrics_.OnDropped(transfer::Drop::kUnexpected);
      return nullptr;
  }
}

std::unique_ptr<Landing> KvReceiver::OnHandshake(PeerId peer_id,
                                                 const proto::TransferHeader& header,
                                                 size_t payload_bytes) {
  absl::StatusOr<transfer::CopyPlan> plan = transfer::CheckHandshake(self_, header);
  absl::Status refusal = plan.status();
  if (refusal.ok() && payload_bytes != transfer::kPatternBytes) {
    refusal = absl::InvalidArgumentError(absl::StrCat("a self-test pattern of ", payload_bytes,
                                                      " bytes, not ", transfer::kPatternBytes));
  }
  if (refusal.ok() && peers_.contains(peer_id)) {
    refusal = absl::InvalidArgumentError("a second handshake on one connection");
  }
  if (refusal.ok() && peers_.size() >= options_.max_peers) {
    refusal = absl::ResourceExhaustedError(
        absl::StrCat(peers_.size(), " prefill nodes are connected, the limit"));
  }
  if (!refusal.ok()) {
    RefuseHandshake(peer_id, header.sender(), refusal);
    return nullptr;
  }
  auto peer = std::make_unique<Peer>();
  peer->id = peer_id;
  peer->incarnation = header.sender();
  peer->same_class = header.handshake().numeric_class() == self_.numeric_class;
  peer->plan = *std::move(plan);
  peer->since = loop_.Now();
  // One message may be larger than the credit when nothing else is under way: a commit.
  peer->staging = staging_.Open(static_cast<size_t>(options_.credit_bytes) + kMaxCommitBytes);
  std::unique_ptr<Landing> landing = peer->staging->Acquire(payload_bytes);
  if (landing == nullptr) {
    RefuseHandshake(peer_id, header.sender(),
                    absl::ResourceExhaustedError("no staging memory is free"));
    return nullptr;
  }
  peers_[peer_id] = std::move(peer);
  UpdateGauges();
  return landing;
}

void KvReceiver::RefuseHandshake(PeerId peer, Incarnation sender, const absl::Status& status) {
  metrics_.OnDropped(transfer::Drop::kHandshakeRefused);
  telemetry::LogWarning("refused a prefill node",
                        {{"peer_incarnation", HexId(sender)}, {"status", status.ToString()}});
  proto::TransferHeader reply = transfer::MakeHeader(self_.incarnation, sender);
  reply.mutable_handshake_reply()->set_message(transfer::ReplyMessage(status));
  reply.mutable_handshake_reply()->set_status_code(static_cast<uint32_t>(status.code()));
  SendControl(peer, reply);
}

void KvReceiver::OnHandshakePayload(Peer& peer, std::span<const std::byte> payload) {
  // The sender compares: it knows what it sent.
  proto::TransferHeader reply = transfer::MakeHeader(self_.incarnation, peer.incarnation);
  proto::HandshakeReply& body = *reply.mutable_handshake_reply();
  body.set_accepted(true);
  body.set_pattern_checksum(transfer::Checksum(payload));
  body.set_credit_bytes(static_cast<uint64_t>(options_.credit_bytes));
  peer.ready =
      body.pattern_checksum() == transfer::Checksum(transfer::SelfTestPattern(peer.incarnation));
  if (peer.ready) metrics_.OnHandshake(loop_.Now() - peer.since);
  SendControl(peer.id, reply);
  UpdateGauges();
}

int32_t KvReceiver::FirstWanted(const Grant& grant, int32_t layer) const {
  const kv::KvGroups& groups = kv_.layout().groups;
  return std::max(grant.first_block,
                  groups.FirstBlock(groups.group_of(layer), grant.request.prompt_tokens));
}

KvReceiver::Grant* KvReceiver::FindLive(Peer& peer, uint64_t grant_id, uint32_t epoch) {
  const auto refuse = [&](transfer::Drop reason, const char* message) {
    metrics_.OnDropped(reason);
    ReplyToCommit(peer.id, grant_id, epoch, absl::AbortedError(message));
    return nullptr;
  };
  auto it = grants_.find(grant_id);
  if (it == grants_.end()) {
    if (std::find(adopted_.begin(), adopted_.end(), grant_id) != adopted_.end()) {
      metrics_.OnDropped(transfer::Drop::kAdopted);
      ReplyToCommit(peer.id, grant_id, epoch, absl::OkStatus());
      return nullptr;
    }
    return refuse(transfer::Drop::kUnknownGrant, "no such grant: cancelled, expired or failed");
  }
  Grant& grant = *it->second;
  if (grant.epoch != epoch) return refuse(transfer::Drop::kStaleEpoch, "the grant has been fenced");
  if (grant.sender == 0) {
    Pin(grant, peer);
  } else if (grant.sender != peer.id) {
    if (grant.former_senders.contains(peer.id)) {
      return refuse(transfer::Drop::kOtherSender, "another prefill node has taken over");
    }
    // The router has given the grant to another prefill node: the first one is lost to it, even
    // where its connection still stands.
    ReplyToCommit(grant.sender, grant.id, epoch,
                  absl::AbortedError("another prefill node has taken over"));
    metrics_.OnTransferEnd(absl::AbortedError("taken over"), grant.bytes,
                           loop_.Now() - grant.begun);
    grant.former_senders.insert(grant.sender);
    ForgetData(grant);
    Pin(grant, peer);
  }
  return &grant;
}

void KvReceiver::Pin(Grant& grant, Peer& peer) {
  grant.sender = peer.id;
  grant.staging = peer.staging->OpenPart();
  grant.begun = loop_.Now();
  UpdateGauges();
}

std::unique_ptr<Landing> KvReceiver::OnKvPush(Peer& peer, const proto::KvPush& push,
                                              size_t payload_bytes) {
  Grant* grant = FindLive(peer, push.grant_id(), push.epoch());
  if (grant == nullptr) return nullptr;
  const int64_t count = push.checksums_size();
  const int32_t layers = kv_.layout().layers;
  const bool has_layer = push.layer() >= 0 && push.layer() < layers;
  const int32_t first = has_layer ? FirstWanted(*grant, push.layer()) : grant->first_block;
  if (!has_layer || count == 0 || push.first_block() < first ||
      push.first_block() + count > grant->end_block ||
      static_cast<int64_t>(payload_bytes) != count * peer.plan.from_block_bytes) {
    metrics_.OnDropped(transfer::Drop::kRange);
    Fail(*grant,
         absl::InvalidArgumentError(absl::StrCat(
             "push of ", count, " blocks from ", push.first_block(), " in layer ", push.layer(),
             " of ", layers, " with ", payload_bytes, " bytes; the grant wants blocks ", first,
             " to ", grant->end_block, ", ", peer.plan.from_block_bytes, " bytes each")));
    return nullptr;
  }
  grant->deadline = std::max(grant->deadline, loop_.Now() + grant->lease_time);
  std::unique_ptr<Landing> landing = grant->staging->Acquire(payload_bytes);
  if (landing == nullptr) {
    metrics_.OnDropped(transfer::Drop::kNoStaging);
    Fail(*grant, absl::ResourceExhaustedError("no staging memory is free"));
  }
  return landing;
}

std::unique_ptr<Landing> KvReceiver::OnCommit(Peer& peer, const proto::Commit& commit,
                                              size_t payload_bytes) {
  Grant* grant = FindLive(peer, commit.grant_id(), commit.epoch());
  if (grant == nullptr) return nullptr;
  if (payload_bytes == 0 || payload_bytes > kMaxCommitBytes) {
    metrics_.OnDropped(transfer::Drop::kRange);
    Fail(*grant, absl::InvalidArgumentError(absl::StrCat("a commit of ", payload_bytes, " bytes")));
    return nullptr;
  }
  std::unique_ptr<Landing> landing = grant->staging->Acquire(payload_bytes);
  if (landing == nullptr) {
    metrics_.OnDropped(transfer::Drop::kNoStaging);
    Fail(*grant, absl::ResourceExhaustedError("no staging memory is free"));
  }
  return landing;
}

void KvReceiver::OnAbort(Peer& peer, const proto::Abort& abort) {
  auto it = grants_.find(abort.grant_id());
  if (it == grants_.end() || it->second->epoch != abort.epoch() ||
      (it->second->sender != 0 && it->second->sender != peer.id)) {
    metrics_.OnDropped(transfer::Drop::kLateAbort);
    return;
  }
  Grant& grant = *it->second;
  if (grant.sender != 0) {
    metrics_.OnTransferEnd(absl::AbortedError(abort.message()), grant.bytes,
                           loop_.Now() - grant.begun);
  }
  // The grant lives on: the router may give it to another prefill node before its lease is over.
  Fence(grant);
  UpdateGauges();
}

void KvReceiver::OnPayload(PeerId peer_id, std::span<const std::byte> bytes,
                           std::unique_ptr<Landing> payload) {
  // Judged afresh: what OnMessage found may have been cancelled or fenced since.
  auto it = peers_.find(peer_id);
  absl::StatusOr<proto::TransferHeader> header = transfer::ParseHeader(bytes);
  if (it == peers_.end() || !header.ok()) {
    metrics_.OnDropped(transfer::Drop::kUnknownPeer);
    return;
  }
  Peer& peer = *it->second;
  switch (header->body_case()) {
    case proto::TransferHeader::kHandshake:
      OnHandshakePayload(peer, payload->bytes());
      break;
    case proto::TransferHeader::kKvPush:
      OnKvPayload(peer, header->kv_push(), payload->bytes());
      break;
    case proto::TransferHeader::kCommit:
      OnCommitPayload(peer, header->commit(), payload->bytes());
      break;
    default:
      metrics_.OnDropped(transfer::Drop::kUnexpected);
  }
}

void KvReceiver::OnKvPayload(Peer& peer, const proto::KvPush& push,
                             std::span<const std::byte> payload) {
  Grant* grant = FindLive(peer, push.grant_id(), push.epoch());
  if (grant == nullptr) return;
  const size_t block_bytes = static_cast<size_t>(peer.plan.from_block_bytes);
  const size_t per_layer = static_cast<size_t>(grant->end_block - grant->first_block);
  const std::span<const kv::BlockId> table =
      grant->request.lease.group(kv_.layout().groups.group_of(push.layer()));
  for (int i = 0; i < push.checksums_size(); ++i) {
    const std::span<const std::byte> block =
        payload.subspan(static_cast<size_t>(i) * block_bytes, block_bytes);
    const int32_t index = push.first_block() + i;
    if (transfer::Checksum(block) != push.checksums(i)) {
      Fail(*grant,
           absl::DataLossError(absl::StrCat("block ", index, " of layer ", push.layer(),
                                            " of sequence ", HexId(grant->request.sequence),
                                            " arrived damaged from ", HexId(peer.incarnation))));
      return;
    }
    const size_t bit = static_cast<size_t>(push.layer()) * per_layer +
                       static_cast<size_t>(index - grant->first_block);
    if (grant->verified[bit]) {
      metrics_.OnDropped(transfer::Drop::kDuplicate);
      continue;
    }
    const kv::BlockId to = table[static_cast<size_t>(index)];
    for (const transfer::CopySlice& slice : peer.plan.slices) {
      kv_.Write(push.layer(), to, slice.to,
                block.subspan(static_cast<size_t>(slice.from), static_cast<size_t>(slice.bytes)));
    }
    grant->verified[bit] = true;
    grant->missing -= 1;
    grant->bytes += static_cast<int64_t>(block_bytes);
  }
  AdoptIfComplete(*grant);
}

absl::Status KvReceiver::CheckCommitBody(const Grant& grant, const proto::CommitBody& body) const {
  const Request& request = grant.request;
  const auto differ = [](const char* what, const auto& committed, const auto& granted) {
    return absl::InvalidArgumentError(
        absl::StrCat("the commit's ", what, " is ", committed, ", the grant's ", granted));
  };
  if (body.sequence() != request.sequence) {
    return differ("sequence", HexId(body.sequence()), HexId(request.sequence));
  }
  if (body.router() != request.router) {
    return differ("router", HexId(body.router()), HexId(request.router));
  }
  if (body.prompt_size() != request.prompt_tokens) {
    return differ("prompt length", body.prompt_size(), request.prompt_tokens);
  }
  if (body.blocks() != grant.end_block) {
    return differ("number of blocks", body.blocks(), grant.end_block);
  }
  return absl::OkStatus();
}

absl::Status KvReceiver::CheckHeldPrefix(const Grant& grant, const proto::CommitBody& body) const {
  const std::vector<TokenId>& held = grant.request.held_prefix;
  const auto [mine, prompt] =
      std::mismatch(held.begin(), held.end(), body.prompt().begin(), body.prompt().end());
  if (mine == held.end()) return absl::OkStatus();
  return absl::AbortedError(absl::StrCat("the prompt differs in token ", mine - held.begin(),
                                         " from the prefix of ", held.size(),
                                         " tokens that was held for it"));
}

void KvReceiver::OnCommitPayload(Peer& peer, const proto::Commit& commit,
                                 std::span<const std::byte> payload) {
  Grant* grant = FindLive(peer, commit.grant_id(), commit.epoch());
  if (grant == nullptr) return;
  if (transfer::Checksum(payload) != commit.body_checksum()) {
    Fail(*grant,
         absl::DataLossError(absl::StrCat("the commit of sequence ", HexId(grant->request.sequence),
                                          " arrived damaged")));
    return;
  }
  if (grant->commit.has_value()) {
    metrics_.OnDropped(transfer::Drop::kDuplicate);
    return;
  }
  proto::CommitBody body;
  if (!proto::ParseMessage(payload, body)) {
    metrics_.OnDropped(transfer::Drop::kMalformed);
    Fail(*grant, absl::InvalidArgumentError("the commit is malformed"));
    return;
  }
  if (absl::Status status = CheckCommitBody(*grant, body); !status.ok()) {
    Fail(*grant, status);
    return;
  }
  if (absl::Status status = CheckHeldPrefix(*grant, body); !status.ok()) {
    metrics_.OnPrefixMismatch();
    Fail(*grant, status);
    return;
  }
  grant->commit = std::move(body);
  if (grant->missing > 0) {
    const uint64_t id = grant->id;
    grant->grace_timer = loop_.RunAfter(options_.commit_grace, [this, id] { OnGrace(id); });
  }
  AdoptIfComplete(*grant);
}

void KvReceiver::AdoptIfComplete(Grant& grant) {
  if (!grant.commit.has_value() || grant.missing > 0) return;
  metrics_.OnTransferEnd(absl::OkStatus(), grant.bytes, loop_.Now() - grant.begun);
  adopted_[next_adopted_] = grant.id;
  next_adopted_ = (next_adopted_ + 1) % adopted_.size();
  ReplyToCommit(grant.sender, grant.id, grant.epoch, absl::OkStatus());
  const bool same_class = peers_.at(grant.sender)->same_class;  // Its end ends the epoch.
  const std::unique_ptr<Grant> done = Remove(grant);
  UpdateGauges();
  handler_.OnAdopt({done->request.sequence, done->request.router, std::move(done->request.lease),
                    *std::move(done->commit), same_class});
}

void KvReceiver::OnGrace(uint64_t grant_id) {
  Grant& grant = *grants_.at(grant_id);
  if (grant.staging->used_bytes() > 0) {  // Still landing; the lease bounds how long.
    grant.grace_timer =
        loop_.RunAfter(options_.commit_grace, [this, grant_id] { OnGrace(grant_id); });
    return;
  }
  Fail(grant, absl::DataLossError(absl::StrCat(grant.missing, " blocks of sequence ",
                                               HexId(grant.request.sequence), " never arrived")));
}

void KvReceiver::OnLeaseTimer(uint64_t grant_id) {
  Grant& grant = *grants_.at(grant_id);
  if (grant.deadline > loop_.Now()) {  // Extended meanwhile.
    grant.lease_timer =
        loop_.RunAfter(grant.deadline - loop_.Now(), [this, grant_id] { OnLeaseTimer(grant_id); });
    return;
  }
  metrics_.OnLeaseExpired();
  Fail(grant, absl::DeadlineExceededError(absl::StrCat(
                  "the grant of sequence ", HexId(grant.request.sequence), " has run out")));
}

void KvReceiver::Fail(Grant& grant, const absl::Status& status) {
  if (grant.sender != 0) {
    ReplyToCommit(grant.sender, grant.id, grant.epoch,
                  absl::IsDataLoss(status) ? status : absl::AbortedError(status.message()));
    metrics_.OnTransferEnd(status, grant.bytes, loop_.Now() - grant.begun);
  }
  const uint64_t sequence = grant.request.sequence;
  const Incarnation router = grant.request.router;
  Remove(grant);
  UpdateGauges();
  handler_.OnFailed(sequence, router, status);
}

void KvReceiver::Fence(Grant& grant) {
  grant.epoch += 1;
  grant.former_senders.clear();
  ForgetData(grant);
}

void KvReceiver::ForgetData(Grant& grant) {
  loop_.CancelTimer(grant.grace_timer);
  if (grant.staging != nullptr) grant.staging->Abandon();
  grant.sender = 0;
  grant.staging.reset();
  grant.commit.reset();
  grant.bytes = 0;
  grant.missing = grant.wanted;
  grant.verified.assign(grant.verified.size(), false);
}

std::unique_ptr<KvReceiver::Grant> KvReceiver::Remove(Grant& grant) {
  loop_.CancelTimer(grant.lease_timer);
  loop_.CancelTimer(grant.grace_timer);
  if (grant.staging != nullptr) grant.staging->Abandon();
  by_sequence_.erase(grant.request.sequence);
  auto node = grants_.extract(grant.id);
  return std::move(node.mapped());
}

void KvReceiver::OnPeerDown(PeerId peer, const absl::Status& reason) {
  auto node = peers_.extract(peer);
  if (node.empty()) return;
  const bool goodbye = absl::IsCancelled(reason);
  telemetry::Log(
      goodbye ? telemetry::LogLevel::kInfo : telemetry::LogLevel::kWarning,
      goodbye ? "a prefill node closed its connection" : "a prefill node is gone",
      {{"peer_incarnation", HexId(node.mapped()->incarnation)}, {"status", reason.ToString()}});
  node.mapped()->staging->Abandon();
  for (auto& [id, grant] : grants_) {
    if (grant->sender != peer) continue;
    metrics_.OnTransferEnd(absl::UnavailableError("the prefill node is gone"), grant->bytes,
                           loop_.Now() - grant->begun);
    Fence(*grant);
  }
  UpdateGauges();
}

void KvReceiver::ReplyToCommit(PeerId peer, uint64_t grant_id, uint32_t epoch,
                               const absl::Status& status) {
  auto it = peers_.find(peer);
  if (it == peers_.end()) return;
  proto::TransferHeader header = transfer::MakeHeader(self_.incarnation, it->second->incarnation);
  proto::CommitReply& reply = *header.mutable_commit_reply();
  reply.set_grant_id(grant_id);
  reply.set_epoch(epoch);
  reply.set_status_code(static_cast<uint32_t>(status.code()));
  reply.set_message(transfer::ReplyMessage(status));
  SendControl(peer, header);
}

void KvReceiver::SendControl(PeerId peer, const proto::TransferHeader& header) {
  // Best effort: whoever waits for the answer has a deadline.
  engine_->Send(peer, header.SerializeAsString(), {}, [](const absl::Status&) {});
}

void KvReceiver::UpdateGauges() {
  const absl::Time now = loop_.Now();
  int64_t pending = 0;
  absl::Time oldest = now;
  for (const auto& [id, grant] : grants_) {
    if (grant->sender == 0) continue;
    ++pending;
    oldest = std::min(oldest, grant->begun);
  }
  metrics_.SetPending(pending, static_cast<int64_t>(staging_.used_bytes()), now - oldest);
  metrics_.SetQuarantinedBytes(staging_.quarantined_bytes());
  const auto ready = std::count_if(peers_.begin(), peers_.end(),
                                   [](const auto& entry) { return entry.second->ready; });
  metrics_.SetPeers(static_cast<int64_t>(peers_.size()) - ready, ready, 0);
  // Ages grow, and staging is let go of, without events here.
  if (tick_ == 0 && (pending > 0 || staging_.used_bytes() > 0)) {
    tick_ = loop_.RunAfter(kTick, [this] {
      tick_ = 0;
      UpdateGauges();
    });
  }
}

}  // namespace lynx::decode
