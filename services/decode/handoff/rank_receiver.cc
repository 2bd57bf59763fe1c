#include "services/decode/handoff/rank_receiver.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/telemetry/log.h"

namespace lynx::decode {

namespace {

std::span<const kv::BlockId> BlocksOf(const google::protobuf::RepeatedField<kv::BlockId>& blocks) {
  return {blocks.data(), static_cast<size_t>(blocks.size())};
}

// Rank 0 goes on as if it were done, and a rank that has lost its memory is of no use to it.
void CheckCopied(const absl::Status& status) {
  LYNX_CHECK_MSG(status.ok(), std::string(status.message()));
}

}  // namespace

using transfer::Landing;
using transfer::PeerId;

RankReceiver::RankReceiver(node::RankWorkerParts parts, const Options& options)
    : kv_(parts.kv),
      loop_(parts.loop),
      rank0_(parts.rank0),
      options_(options),
      engine_(std::move(parts.engine)),
      metrics_(parts.registry, "recv", engine_->TransportName()),
      peers_(std::move(parts.identity), *engine_, loop_, metrics_, options.peers) {
  engine_->Start(*this);
}

RankReceiver::~RankReceiver() {
  engine_.reset();
  loop_.CancelTimer(early_timer_);
}

void RankReceiver::OnMessage(const proto::RankMessage& message) {
  if (message.replica() != peers_.self().layout.replica()) return;
  switch (message.body_case()) {
    case proto::RankMessage::kOpenGrant:
      Open(message.open_grant());
      break;
    case proto::RankMessage::kCloseGrant:
      Close(message.close_grant().grant_id());
      break;
    case proto::RankMessage::kSaveKv: {
      const proto::SaveKv& save = message.save_kv();
      auto copy = kv::SwappedKv::Copy(kv_, BlocksOf(save.blocks()), save.position());
      CheckCopied(copy.status());
      copies_.emplace(save.copy(), *std::move(copy));
      break;
    }
    case proto::RankMessage::kRestoreKv: {
      const proto::RestoreKv& restore = message.restore_kv();
      CheckCopied(copies_.at(restore.copy())
                      .Restore(kv_, BlocksOf(restore.blocks()), restore.first_block()));
      break;
    }
    case proto::RankMessage::kDropKv:
      copies_.erase(message.drop_kv().copy());
      break;
    default:
      LYNX_CHECK_MSG(false, "rank 0 of this node is of another role");
  }
  UpdateGauges();
}

void RankReceiver::Open(const proto::OpenGrant& open) {
  const uint64_t id = open.grant_id();
  if (auto it = parts_.find(id); it != parts_.end()) {
    it->second.senders.Abandon();
    parts_.erase(it);
  }
  parts_.emplace(id, Part{.epoch = open.epoch(),
                          .fill = PartFill(kv_, {open.blocks().begin(), open.blocks().end()},
                                           open.first_block(), open.prompt_tokens()),
                          .senders = {}});
  std::vector<Early> waiting;
  for (Early& early : std::exchange(early_, {})) {
    (early.push.grant_id() == id ? waiting : early_).push_back(std::move(early));
  }
  for (Early& early : waiting) {
    PrefillPeer* const peer = peers_.Find(early.peer);
    if (peer != nullptr) Store(*peer, early.push, early.payload->bytes());
  }
}

void RankReceiver::Close(uint64_t grant_id) {
  auto it = parts_.find(grant_id);
  if (it == parts_.end()) return;
  it->second.senders.Abandon();
  parts_.erase(it);
  closed_[next_closed_] = grant_id;
  next_closed_ = (next_closed_ + 1) % closed_.size();
}

bool RankReceiver::IsEarly(uint64_t grant_id, uint32_t epoch) const {
  auto it = parts_.find(grant_id);
  if (it != parts_.end()) return it->second.epoch < epoch;
  return std::find(closed_.begin(), closed_.end(), grant_id) == closed_.end();
}

RankReceiver::Part* RankReceiver::FindLive(PrefillPeer& peer, uint64_t grant_id, uint32_t epoch) {
  const auto refuse = [&](transfer::Drop reason, const char* message) {
    metrics_.OnDropped(reason);
    peers_.Reply(peer.id, grant_id, epoch, absl::AbortedError(message));
    return nullptr;
  };
  auto it = parts_.find(grant_id);
  if (it == parts_.end()) {
    return refuse(transfer::Drop::kUnknownGrant, "no such grant: cancelled, expired or failed");
  }
  Part& part = it->second;
  if (part.epoch != epoch) return refuse(transfer::Drop::kStaleEpoch, "the grant has been fenced");
  if (part.senders.contains(peer.id)) return &part;
  if (!part.senders.Admits(peer)) {
    Tell(grant_id, part, absl::UnavailableError("two prefill nodes fill one grant"));
    return refuse(transfer::Drop::kOtherSender, "another prefill node fills the grant");
  }
  part.senders.Add(peer, loop_.Now());
  return &part;
}

std::unique_ptr<Landing> RankReceiver::OnMessage(PeerId peer_id, std::span<const std::byte> bytes,
                                                 size_t payload_bytes) {
  PrefillPeers::Arrival arrival = peers_.OnMessage(peer_id, bytes, payload_bytes);
  PrefillPeer* const peer = arrival.peer;
  if (peer == nullptr) {
    if (arrival.landing != nullptr) UpdateGauges();
    return std::move(arrival.landing);
  }
  if (!arrival.header.has_kv_push() || payload_bytes == 0) {
    metrics_.OnDropped(transfer::Drop::kUnexpected);
    return nullptr;
  }
  const proto::KvPush& push = arrival.header.kv_push();
  if (IsEarly(push.grant_id(), push.epoch())) return peer->staging->Acquire(payload_bytes);
  Part* const part = FindLive(*peer, push.grant_id(), push.epoch());
  if (part == nullptr || part->told) return nullptr;
  absl::Status status = part->fill.Check(peer->plan, push, payload_bytes);
  std::unique_ptr<Landing> landing;
  if (!status.ok()) {
    metrics_.OnDropped(transfer::Drop::kRange);
  } else {
    landing = part->senders.Acquire(peer_id, payload_bytes);
    if (landing != nullptr) return landing;
    metrics_.OnDropped(transfer::Drop::kNoStaging);
    status = absl::ResourceExhaustedError("no staging memory is free");
  }
  Tell(push.grant_id(), *part, status);
  return nullptr;
}

void RankReceiver::OnPayload(PeerId peer_id, std::span<const std::byte> bytes,
                             std::unique_ptr<Landing> payload) {
  PrefillPeer* const peer = peers_.Find(peer_id);
  absl::StatusOr<proto::TransferHeader> header = transfer::ParseHeader(bytes);
  if (peer == nullptr || !header.ok()) {
    metrics_.OnDropped(transfer::Drop::kUnknownPeer);
    return;
  }
  if (header->has_handshake()) {
    peers_.OnHandshakePayload(*peer, payload->bytes());
    UpdateGauges();
    return;
  }
  const proto::KvPush& push = header->kv_push();
  if (!IsEarly(push.grant_id(), push.epoch())) {
    Store(*peer, push, payload->bytes());
    return;
  }
  early_.push_back({peer_id, push, std::move(payload), loop_.Now() + options_.early_time});
  if (early_timer_ == 0) {
    early_timer_ = loop_.RunAfter(options_.early_time, [this] { DropEarly(); });
  }
}

void RankReceiver::DropEarly() {
  early_timer_ = 0;
  for (Early& early : std::exchange(early_, {})) {
    if (early.until > loop_.Now()) {
      early_.push_back(std::move(early));
      continue;
    }
    metrics_.OnDropped(transfer::Drop::kUnknownGrant);
    peers_.Reply(early.peer, early.push.grant_id(), early.push.epoch(),
                 absl::AbortedError("no such grant: cancelled, expired or failed"));
  }
  if (!early_.empty()) {
    early_timer_ = loop_.RunAfter(early_.front().until - loop_.Now(), [this] { DropEarly(); });
  }
}

void RankReceiver::Store(PrefillPeer& peer, const proto::KvPush& push,
                         std::span<const std::byte> payload) {
  Part* const part = FindLive(peer, push.grant_id(), push.epoch());
  if (part == nullptr || part->told) return;
  // What was early has not been looked at before.
  if (absl::Status status = part->fill.Check(peer.plan, push, payload.size()); !status.ok()) {
    metrics_.OnDropped(transfer::Drop::kRange);
    Tell(push.grant_id(), *part, status);
    return;
  }
  const absl::StatusOr<int> repeated = part->fill.Store(peer.plan, push, payload);
  if (!repeated.ok()) {
    Tell(push.grant_id(), *part,
         absl::Status(repeated.status().code(),
                      absl::StrCat(std::string(repeated.status().message()), " from ",
                                   HexId(peer.incarnation))));
    return;
  }
  for (int i = 0; i < *repeated; ++i) metrics_.OnDropped(transfer::Drop::kDuplicate);
  if (part->fill.complete()) Tell(push.grant_id(), *part, absl::OkStatus());
}

void RankReceiver::Tell(uint64_t grant_id, Part& part, const absl::Status& status) {
  if (std::exchange(part.told, true)) return;
  metrics_.OnTransferEnd(status, part.fill.bytes(), loop_.Now() - part.senders.begun());
  proto::RankMessage message;
  proto::PartEvent& event = *message.mutable_part_event();
  event.set_grant_id(grant_id);
  event.set_epoch(part.epoch);
  event.set_sender(part.senders.node());
  event.set_status_code(static_cast<uint32_t>(status.code()));
  event.set_message(transfer::ReplyMessage(status));
  rank0_.Tell(message);
}

void RankReceiver::OnPeerDown(PeerId peer, const absl::Status& reason) {
  const std::unique_ptr<PrefillPeer> gone = peers_.Remove(peer, reason);
  if (gone == nullptr) return;
  std::erase_if(early_, [&](const Early& early) { return early.peer == peer; });
  for (auto& [id, part] : parts_) {
    if (!part.senders.Remove(peer)) continue;
    // A complete part needs nobody any more.
    Tell(id, part, absl::UnavailableError("the prefill node is gone"));
  }
  UpdateGauges();
}

void RankReceiver::UpdateGauges() {
  const absl::Time now = loop_.Now();
  int64_t pending = 0;
  absl::Time oldest = now;
  for (const auto& [id, part] : parts_) {
    if (part.senders.node() == 0 || part.told) continue;
    ++pending;
    oldest = std::min(oldest, part.senders.begun());
  }
  metrics_.SetPending(pending, static_cast<int64_t>(peers_.staging().used_bytes()), now - oldest);
  peers_.UpdateGauges();
}

}  // namespace lynx::decode
