#include "services/decode/handoff/kv_receiver.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/proto/parse.h"
#include "common/transfer/checksum.h"
#include "services/decode/handoff/grant_senders.h"

namespace lynx::decode {
namespace {

using transfer::Landing;
using transfer::PeerId;

constexpr absl::Duration kTick = absl::Seconds(1);

// The blocks of the prompt, [groups][end_block].
std::vector<kv::BlockId> BlocksOf(const kv::BlockTable& lease, int32_t groups, int32_t end_block) {
  std::vector<kv::BlockId> blocks;
  for (int32_t group = 0; group < groups; ++group) {
    const auto table = lease.group(group).first(static_cast<size_t>(end_block));
    blocks.insert(blocks.end(), table.begin(), table.end());
  }
  return blocks;
}

}  // namespace

struct KvReceiver::Grant {
  Grant(Request r, PartFill f) : request(std::move(r)), fill(std::move(f)) {}

  uint64_t id = 0;
  uint32_t epoch = 1;
  Request request;
  absl::Time deadline;
  absl::Duration lease_time;
  TimerId lease_timer = 0;

  // Of the present epoch:
  PartFill fill;
  GrantSenders senders;
  std::set<PeerId> former_senders;    // Superseded; refused for good.
  std::map<int, Incarnation> filled;  // Other ranks' parts, and by whom.
  std::optional<proto::CommitBody> commit;
  PeerId committer = 0;
  TimerId grace_timer = 0;

  int32_t held_tokens() const { return static_cast<int32_t>(request.held_prefix.size()); }
};

KvReceiver::KvReceiver(transfer::NodeIdentity self, kv::KvArena& kv,
                       std::unique_ptr<transfer::TransferEngine> engine, EventLoop& loop,
                       telemetry::Registry& registry, Handler& handler, const Options& options,
                       ReceiverRanks ranks)
    : kv_(kv),
      loop_(loop),
      handler_(handler),
      options_(options),
      ranks_(std::move(ranks)),
      engine_(std::move(engine)),
      metrics_(registry, "recv", engine_->TransportName()),
      peers_(std::move(self), *engine_, loop, metrics_,
             {.credit_bytes = options.credit_bytes,
              .staging_bytes = options.staging_bytes,
              .max_peers = options.max_peers}) {
  if (!ranks_.endpoints.empty()) {
    ranks_.endpoints[0].set_transfer_address(engine_->LocalAddress());
  }
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
  const auto end_block = static_cast<int32_t>(kv::BlocksFor(request.prompt_tokens));
  // Of a grant of another replica nothing comes here.
  const int32_t first_block =
      request.replica == 0 ? static_cast<int32_t>(held / kv::kBlockTokens) : end_block;
  PartFill fill(kv_, BlocksOf(request.lease, kv_.layout().groups.count(), end_block), first_block,
                request.prompt_tokens);
  auto grant = std::make_unique<Grant>(std::move(request), std::move(fill));
  const uint64_t id = RandomId();
  grant->id = id;
  grant->lease_time = grant->request.lease_time;
  grant->deadline = loop_.Now() + grant->lease_time;
  grant->lease_timer =
      loop_.RunAfter(grant->deadline - loop_.Now(), [this, id] { OnLeaseTimer(id); });
  OpenOnOtherRanks(*grant);
  proto::GrantInfo info = Describe(*grant);
  by_sequence_[sequence] = id;
  LYNX_CHECK(grants_.emplace(id, std::move(grant)).second);
  UpdateGauges();
  return info;
}

std::pair<int, int> KvReceiver::RanksOf(const Grant& grant) const {
  const int tp = peers_.self().layout.tp_size();
  return {grant.request.replica * tp, (grant.request.replica + 1) * tp};
}

void KvReceiver::Tell(const Grant& grant, proto::RankMessage message) {
  if (ranks_.channel == nullptr) return;
  message.set_replica(grant.request.replica);
  ranks_.channel->Tell(message);
}

void KvReceiver::OpenOnOtherRanks(const Grant& grant) {
  if (ranks_.channel == nullptr) return;
  proto::RankMessage message;
  proto::OpenGrant& open = *message.mutable_open_grant();
  open.set_grant_id(grant.id);
  open.set_epoch(grant.epoch);
  open.set_prompt_tokens(grant.request.prompt_tokens);
  open.set_first_block(grant.held_tokens() / kv::kBlockTokens);
  const auto blocks = grant.fill.blocks();
  open.mutable_blocks()->Assign(blocks.begin(), blocks.end());
  Tell(grant, std::move(message));
}

proto::GrantInfo KvReceiver::Describe(const Grant& grant) const {
  proto::GrantInfo info;
  info.set_grant_id(grant.id);
  info.set_decode_incarnation(peers_.self().incarnation);
  info.set_epoch(grant.epoch);
  info.set_transfer_address(engine_->LocalAddress());
  info.set_blocks(grant.request.lease.end_block());
  info.set_held_prefix_tokens(grant.held_tokens());
  info.set_compatibility_hash(peers_.self().compatibility_hash);
  if (!ranks_.endpoints.empty()) {
    const auto [first, past] = RanksOf(grant);
    info.mutable_ranks()->Assign(ranks_.endpoints.begin() + first, ranks_.endpoints.begin() + past);
  }
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
  if (grant.senders.node() != 0) {
    ReplyToSenders(grant, status);
    metrics_.OnTransferEnd(status, grant.fill.bytes(), loop_.Now() - grant.senders.begun());
  }
  Remove(grant);
  UpdateGauges();
}

void KvReceiver::OnRankMessage(int rank, const proto::RankMessage& message) {
  if (!message.has_part_event()) return;
  const proto::PartEvent& event = message.part_event();
  auto it = grants_.find(event.grant_id());
  if (it == grants_.end() || it->second->epoch != event.epoch()) return;  // It is over.
  Grant& grant = *it->second;
  if (event.status_code() == 0) {
    grant.filled[rank] = event.sender();
    AdoptIfComplete(grant);
    return;
  }
  const absl::Status status = transfer::StatusFromReply(
      event.status_code(), absl::StrCat("rank ", rank, ": ", event.message()));
  if (absl::IsUnavailable(status)) {
    Refill(grant, status);
  } else {
    Fail(grant, status);
  }
}

std::unique_ptr<Landing> KvReceiver::OnMessage(PeerId peer_id, std::span<const std::byte> bytes,
                                               size_t payload_bytes) {
  PrefillPeers::Arrival arrival = peers_.OnMessage(peer_id, bytes, payload_bytes);
  if (arrival.peer == nullptr) {
    if (arrival.landing != nullptr) UpdateGauges();
    return std::move(arrival.landing);
  }
  PrefillPeer& peer = *arrival.peer;
  switch (arrival.header.body_case()) {
    case proto::TransferHeader::kKvPush:
      return OnKvPush(peer, arrival.header.kv_push(), payload_bytes);
    case proto::TransferHeader::kCommit:
      return OnCommit(peer, arrival.header.commit(), payload_bytes);
    case proto::TransferHeader::kAbort:
      OnAbort(peer, arrival.header.abort());
      return nullptr;
    case proto::TransferHeader::kOpen:
      FindLive(peer, arrival.header.open().grant_id(), arrival.header.open().epoch());
      return nullptr;
    default:
      metrics_.OnDropped(transfer::Drop::kUnexpected);
      return nullptr;
  }
}

KvReceiver::Grant* KvReceiver::FindLive(PrefillPeer& peer, uint64_t grant_id, uint32_t epoch) {
  const auto refuse = [&](transfer::Drop reason, const char* message) {
    metrics_.OnDropped(reason);
    peers_.Reply(peer.id, grant_id, epoch, absl::AbortedError(message));
    return nullptr;
  };
  auto it = grants_.find(grant_id);
  if (it == grants_.end()) {
    if (std::find(adopted_.begin(), adopted_.end(), grant_id) != adopted_.end()) {
      metrics_.OnDropped(transfer::Drop::kAdopted);
      peers_.Reply(peer.id, grant_id, epoch, absl::OkStatus());
      return nullptr;
    }
    return refuse(transfer::Drop::kUnknownGrant, "no such grant: cancelled, expired or failed");
  }
  Grant& grant = *it->second;
  if (grant.epoch != epoch) return refuse(transfer::Drop::kStaleEpoch, "the grant has been fenced");
  if (grant.senders.contains(peer.id)) return &grant;
  if (grant.former_senders.contains(peer.id)) {
    return refuse(transfer::Drop::kOtherSender, "another prefill node has taken over");
  }
  if (!grant.senders.Admits(peer)) {
    // The router has given the grant to another prefill node: the first one is lost to it, even
    // where its connection still stands.
    const absl::Status taken = absl::AbortedError("another prefill node has taken over");
    if (ranks_.channel != nullptr) {
      // Ranks may see the two in unlike orders: neither goes on.
      Refill(grant, taken);
      return refuse(transfer::Drop::kStaleEpoch, "the grant has been fenced");
    }
    ReplyToSenders(grant, taken);
    metrics_.OnTransferEnd(taken, grant.fill.bytes(), loop_.Now() - grant.senders.begun());
    for (const PeerId sender : grant.senders.peers()) grant.former_senders.insert(sender);
    ForgetData(grant);
  }
  grant.senders.Add(peer, loop_.Now());
  UpdateGauges();
  return &grant;
}

std::unique_ptr<Landing> KvReceiver::Land(Grant& grant, const PrefillPeer& peer, size_t bytes) {
  std::unique_ptr<Landing> landing = grant.senders.Acquire(peer.id, bytes);
  if (landing == nullptr) {
    metrics_.OnDropped(transfer::Drop::kNoStaging);
    Fail(grant, absl::ResourceExhaustedError("no staging memory is free"));
  }
  return landing;
}

std::unique_ptr<Landing> KvReceiver::OnKvPush(PrefillPeer& peer, const proto::KvPush& push,
                                              size_t payload_bytes) {
  Grant* grant = FindLive(peer, push.grant_id(), push.epoch());
  if (grant == nullptr) return nullptr;
  if (absl::Status status = grant->fill.Check(peer.plan, push, payload_bytes); !status.ok()) {
    metrics_.OnDropped(transfer::Drop::kRange);
    Fail(*grant, status);
    return nullptr;
  }
  grant->deadline = std::max(grant->deadline, loop_.Now() + grant->lease_time);
  return Land(*grant, peer, payload_bytes);
}

std::unique_ptr<Landing> KvReceiver::OnCommit(PrefillPeer& peer, const proto::Commit& commit,
                                              size_t payload_bytes) {
  Grant* grant = FindLive(peer, commit.grant_id(), commit.epoch());
  if (grant == nullptr) return nullptr;
  if (payload_bytes == 0 || payload_bytes > PrefillPeers::kMaxCommitBytes) {
    metrics_.OnDropped(transfer::Drop::kRange);
    Fail(*grant, absl::InvalidArgumentError(absl::StrCat("a commit of ", payload_bytes, " bytes")));
    return nullptr;
  }
  return Land(*grant, peer, payload_bytes);
}

void KvReceiver::OnAbort(PrefillPeer& peer, const proto::Abort& abort) {
  auto it = grants_.find(abort.grant_id());
  if (it == grants_.end() || it->second->epoch != abort.epoch() ||
      (!it->second->senders.contains(peer.id) && !it->second->senders.Admits(peer))) {
    metrics_.OnDropped(transfer::Drop::kLateAbort);
    return;
  }
  Grant& grant = *it->second;
  if (grant.senders.node() != 0) {
    metrics_.OnTransferEnd(absl::AbortedError(abort.message()), grant.fill.bytes(),
                           loop_.Now() - grant.senders.begun());
  }
  // The grant lives on: the router may give it to another prefill node before its lease is over.
  Fence(grant);
  UpdateGauges();
}

void KvReceiver::OnPayload(PeerId peer_id, std::span<const std::byte> bytes,
                           std::unique_ptr<Landing> payload) {
  // Judged afresh: what OnMessage found may have been cancelled or fenced since.
  PrefillPeer* const peer = peers_.Find(peer_id);
  absl::StatusOr<proto::TransferHeader> header = transfer::ParseHeader(bytes);
  if (peer == nullptr || !header.ok()) {
    metrics_.OnDropped(transfer::Drop::kUnknownPeer);
    return;
  }
  switch (header->body_case()) {
    case proto::TransferHeader::kHandshake:
      peers_.OnHandshakePayload(*peer, payload->bytes());
      UpdateGauges();
      break;
    case proto::TransferHeader::kKvPush:
      OnKvPayload(*peer, header->kv_push(), payload->bytes());
      break;
    case proto::TransferHeader::kCommit:
      OnCommitPayload(*peer, header->commit(), payload->bytes());
      break;
    default:
      metrics_.OnDropped(transfer::Drop::kUnexpected);
  }
}

void KvReceiver::OnKvPayload(PrefillPeer& peer, const proto::KvPush& push,
                             std::span<const std::byte> payload) {
  Grant* grant = FindLive(peer, push.grant_id(), push.epoch());
  if (grant == nullptr) return;
  const absl::StatusOr<int> repeated = grant->fill.Store(peer.plan, push, payload);
  if (!repeated.ok()) {
    Fail(*grant, absl::Status(repeated.status().code(),
                              absl::StrCat(std::string(repeated.status().message()), " from ",
                                           HexId(peer.incarnation), ", of sequence ",
                                           HexId(grant->request.sequence))));
    return;
  }
  for (int i = 0; i < *repeated; ++i) metrics_.OnDropped(transfer::Drop::kDuplicate);
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
  if (body.prompt_size() + body.output_size() != request.prompt_tokens) {
    return differ("number of tokens", body.prompt_size() + body.output_size(),
                  request.prompt_tokens);
  }
  if (body.blocks() != grant.fill.end_block()) {
    return differ("number of blocks", body.blocks(), grant.fill.end_block());
  }
  return absl::OkStatus();
}

absl::Status KvReceiver::CheckHeldPrefix(const Grant& grant, const proto::CommitBody& body) const {
  const std::vector<TokenId>& held = grant.request.held_prefix;
  auto [mine, its] =
      std::mismatch(held.begin(), held.end(), body.prompt().begin(), body.prompt().end());
  if (its == body.prompt().end()) {
    mine = std::mismatch(mine, held.end(), body.output().begin(), body.output().end()).first;
  }
  if (mine == held.end()) return absl::OkStatus();
  return absl::AbortedError(absl::StrCat("the prompt differs in token ", mine - held.begin(),
                                         " from the prefix of ", held.size(),
                                         " tokens that was held for it"));
}

void KvReceiver::OnCommitPayload(PrefillPeer& peer, const proto::Commit& commit,
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
  grant->committer = peer.id;
  if (!grant->fill.complete()) {
    const uint64_t id = grant->id;
    grant->grace_timer = loop_.RunAfter(options_.commit_grace, [this, id] { OnGrace(id); });
  }
  AdoptIfComplete(*grant);
}

bool KvReceiver::OtherRanksFilled(const Grant& grant) const {
  if (ranks_.channel == nullptr) return true;
  const auto [first, past] = RanksOf(grant);
  for (int rank = std::max(1, first); rank < past; ++rank) {
    auto it = grant.filled.find(rank);
    if (it == grant.filled.end() || it->second != grant.senders.node()) return false;
  }
  return true;
}

void KvReceiver::AdoptIfComplete(Grant& grant) {
  if (!grant.commit.has_value() || !grant.fill.complete() || !OtherRanksFilled(grant)) return;
  metrics_.OnTransferEnd(absl::OkStatus(), grant.fill.bytes(), loop_.Now() - grant.senders.begun());
  adopted_[next_adopted_] = grant.id;
  next_adopted_ = (next_adopted_ + 1) % adopted_.size();
  peers_.Reply(grant.committer, grant.id, grant.epoch, absl::OkStatus());
  const bool same_class = peers_.Find(grant.committer)->same_class;  // Its end ends the epoch.
  const std::unique_ptr<Grant> done = Remove(grant);
  UpdateGauges();
  handler_.OnAdopt({done->request.sequence, done->request.router, std::move(done->request.lease),
                    *std::move(done->commit), same_class});
}

void KvReceiver::OnGrace(uint64_t grant_id) {
  Grant& grant = *grants_.at(grant_id);
  if (grant.senders.landing()) {  // The lease bounds how long.
    grant.grace_timer =
        loop_.RunAfter(options_.commit_grace, [this, grant_id] { OnGrace(grant_id); });
    return;
  }
  if (grant.fill.complete()) return;  // Other ranks miss something; the lease bounds that.
  Fail(grant, absl::DataLossError(absl::StrCat(grant.fill.missing(), " blocks of sequence ",
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
  if (grant.senders.node() != 0) {
    ReplyToSenders(grant, absl::IsDataLoss(status) ? status : absl::AbortedError(status.message()));
    metrics_.OnTransferEnd(status, grant.fill.bytes(), loop_.Now() - grant.senders.begun());
  }
  const uint64_t sequence = grant.request.sequence;
  const Incarnation router = grant.request.router;
  Remove(grant);
  UpdateGauges();
  handler_.OnFailed(sequence, router, status);
}

void KvReceiver::Refill(Grant& grant, const absl::Status& why) {
  if (grant.senders.node() != 0) {
    ReplyToSenders(grant, absl::AbortedError(why.message()));
    metrics_.OnTransferEnd(why, grant.fill.bytes(), loop_.Now() - grant.senders.begun());
  }
  Fence(grant);
  UpdateGauges();
}

void KvReceiver::Fence(Grant& grant) {
  grant.epoch += 1;
  grant.former_senders.clear();
  ForgetData(grant);
  OpenOnOtherRanks(grant);
}

void KvReceiver::ForgetData(Grant& grant) {
  loop_.CancelTimer(grant.grace_timer);
  grant.senders.Abandon();
  grant.filled.clear();
  grant.commit.reset();
  grant.committer = 0;
  grant.fill.Forget();
}

std::unique_ptr<KvReceiver::Grant> KvReceiver::Remove(Grant& grant) {
  loop_.CancelTimer(grant.lease_timer);
  loop_.CancelTimer(grant.grace_timer);
  grant.senders.Abandon();
  by_sequence_.erase(grant.request.sequence);
  proto::RankMessage message;
  message.mutable_close_grant()->set_grant_id(grant.id);
  Tell(grant, std::move(message));
  auto node = grants_.extract(grant.id);
  return std::move(node.mapped());
}

void KvReceiver::OnPeerDown(PeerId peer, const absl::Status& reason) {
  const std::unique_ptr<PrefillPeer> gone = peers_.Remove(peer, reason);
  if (gone == nullptr) return;
  for (auto& [id, grant] : grants_) {
    if (!grant->senders.Remove(peer)) continue;
    Refill(*grant, absl::UnavailableError("the prefill node is gone"));
  }
  UpdateGauges();
}

void KvReceiver::ReplyToSenders(const Grant& grant, const absl::Status& status) {
  for (const PeerId sender : grant.senders.peers()) {
    peers_.Reply(sender, grant.id, grant.epoch, status);
  }
}

void KvReceiver::UpdateGauges() {
  const absl::Time now = loop_.Now();
  int64_t pending = 0;
  absl::Time oldest = now;
  for (const auto& [id, grant] : grants_) {
    if (grant->senders.node() == 0) continue;
    ++pending;
    oldest = std::min(oldest, grant->senders.begun());
  }
  metrics_.SetPending(pending, static_cast<int64_t>(staging_bytes()), now - oldest);
  peers_.UpdateGauges();
  // Ages grow, and staging is let go of, without events here.
  if (tick_ == 0 && (pending > 0 || staging_bytes() > 0)) {
    tick_ = loop_.RunAfter(kTick, [this] {
      tick_ = 0;
      UpdateGauges();
    });
  }
}

}  // namespace lynx::decode
