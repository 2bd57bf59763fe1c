#include "services/decode/handoff/prefill_peers.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/rpc/channel.h"
#include "common/telemetry/log.h"
#include "common/transfer/checksum.h"

namespace lynx::decode {

using transfer::Landing;
using transfer::PeerId;

PrefillPeers::PrefillPeers(transfer::NodeIdentity self, transfer::TransferEngine& engine,
                           EventLoop& loop, transfer::TransferMetrics& metrics,
                           const Options& options)
    : self_(std::move(self)),
      engine_(engine),
      loop_(loop),
      metrics_(metrics),
      options_(options),
      staging_(static_cast<size_t>(options.staging_bytes)) {}

PrefillPeer* PrefillPeers::Find(PeerId id) {
  auto it = peers_.find(id);
  return it == peers_.end() ? nullptr : it->second.get();
}

PrefillPeers::Arrival PrefillPeers::OnMessage(PeerId id, std::span<const std::byte> bytes,
                                              size_t payload_bytes) {
  absl::StatusOr<proto::TransferHeader> header = transfer::ParseHeader(bytes);
  if (!header.ok()) {
    metrics_.OnDropped(transfer::Drop::kMalformed);
    return {};
  }
  Arrival arrival;
  if (header->has_handshake()) {
    arrival.landing = OnHandshake(id, *header, payload_bytes);
  } else {
    arrival.peer = Admit(id, *header);
  }
  arrival.header = *std::move(header);
  return arrival;
}

PrefillPeer* PrefillPeers::Admit(PeerId id, const proto::TransferHeader& header) {
  const auto drop = [&](transfer::Drop reason) {
    metrics_.OnDropped(reason);
    return nullptr;
  };
  if (header.version() != rpc::kProtocolVersion) return drop(transfer::Drop::kVersion);
  PrefillPeer* const peer = Find(id);
  if (peer == nullptr || !peer->ready) return drop(transfer::Drop::kNoHandshake);
  if (header.receiver() != self_.incarnation || header.sender() != peer->incarnation) {
    return drop(transfer::Drop::kIncarnation);
  }
  return peer;
}

std::unique_ptr<Landing> PrefillPeers::OnHandshake(PeerId id, const proto::TransferHeader& header,
                                                   size_t payload_bytes) {
  if (peers_.contains(id)) {  // A second one; what was said to the first counts.
    metrics_.OnDropped(transfer::Drop::kUnexpected);
    return nullptr;
  }
  absl::StatusOr<transfer::CopyPlan> plan = transfer::CheckHandshake(self_, header);
  absl::Status refusal = plan.status();
  if (refusal.ok() && payload_bytes != transfer::kPatternBytes) {
    refusal = absl::InvalidArgumentError(absl::StrCat("a self-test pattern of ", payload_bytes,
                                                      " bytes, not ", transfer::kPatternBytes));
  }
  if (refusal.ok() && peers_.size() >= options_.max_peers) {
    refusal = absl::ResourceExhaustedError(
        absl::StrCat(peers_.size(), " prefill ranks are connected, the limit"));
  }
  if (!refusal.ok()) {
    Refuse(id, header.sender(), refusal);
    return nullptr;
  }
  auto peer = std::make_unique<PrefillPeer>();
  peer->id = id;
  peer->incarnation = header.sender();
  const proto::LayoutDescriptor& layout = header.handshake().layout();
  peer->rank = layout.replica() * layout.tp_size() + layout.tp_rank();
  peer->same_class = header.handshake().numeric_class() == self_.numeric_class;
  peer->plan = *std::move(plan);
  peer->since = loop_.Now();
  // One message may be larger than the credit when nothing else is under way: a commit.
  peer->staging = staging_.Open(static_cast<size_t>(options_.credit_bytes) + kMaxCommitBytes);
  std::unique_ptr<Landing> landing = peer->staging->Acquire(payload_bytes);
  if (landing == nullptr) {
    Refuse(id, header.sender(), absl::ResourceExhaustedError("no staging memory is free"));
    return nullptr;
  }
  peers_[id] = std::move(peer);
  return landing;
}

void PrefillPeers::Refuse(PeerId id, Incarnation sender, const absl::Status& status) {
  metrics_.OnDropped(transfer::Drop::kHandshakeRefused);
  telemetry::LogWarning("refused a prefill node",
                        {{"peer_incarnation", HexId(sender)}, {"status", status.ToString()}});
  proto::TransferHeader reply = transfer::MakeHeader(self_.incarnation, sender);
  reply.mutable_handshake_reply()->set_message(transfer::ReplyMessage(status));
  reply.mutable_handshake_reply()->set_status_code(static_cast<uint32_t>(status.code()));
  Send(id, reply);
}

void PrefillPeers::OnHandshakePayload(PrefillPeer& peer, std::span<const std::byte> payload) {
  // The sender compares: it knows what it sent.
  proto::TransferHeader reply = transfer::MakeHeader(self_.incarnation, peer.incarnation);
  proto::HandshakeReply& body = *reply.mutable_handshake_reply();
  body.set_accepted(true);
  body.set_pattern_checksum(transfer::Checksum(payload));
  body.set_credit_bytes(static_cast<uint64_t>(options_.credit_bytes));
  peer.ready =
      body.pattern_checksum() == transfer::Checksum(transfer::SelfTestPattern(peer.incarnation));
  if (peer.ready) metrics_.OnHandshake(loop_.Now() - peer.since);
  Send(peer.id, reply);
}

std::unique_ptr<PrefillPeer> PrefillPeers::Remove(PeerId id, const absl::Status& reason) {
  auto node = peers_.extract(id);
  if (node.empty()) return nullptr;
  const bool goodbye = absl::IsCancelled(reason);
  telemetry::Log(
      goodbye ? telemetry::LogLevel::kInfo : telemetry::LogLevel::kWarning,
      goodbye ? "a prefill node closed its connection" : "a prefill node is gone",
      {{"peer_incarnation", HexId(node.mapped()->incarnation)}, {"status", reason.ToString()}});
  node.mapped()->staging->Abandon();
  return std::move(node.mapped());
}

void PrefillPeers::Reply(PeerId id, uint64_t grant_id, uint32_t epoch, const absl::Status& status) {
  const PrefillPeer* const peer = Find(id);
  if (peer == nullptr) return;
  proto::TransferHeader header = transfer::MakeHeader(self_.incarnation, peer->incarnation);
  proto::CommitReply& reply = *header.mutable_commit_reply();
  reply.set_grant_id(grant_id);
  reply.set_epoch(epoch);
  reply.set_status_code(static_cast<uint32_t>(status.code()));
  reply.set_message(transfer::ReplyMessage(status));
  Send(id, header);
}

void PrefillPeers::Send(PeerId id, const proto::TransferHeader& header) {
  // Best effort: whoever waits for the answer has a deadline.
  engine_.Send(id, header.SerializeAsString(), {}, [](const absl::Status&) {});
}

void PrefillPeers::UpdateGauges() {
  metrics_.SetQuarantinedBytes(staging_.quarantined_bytes());
  const auto ready = std::count_if(peers_.begin(), peers_.end(),
                                   [](const auto& entry) { return entry.second->ready; });
  metrics_.SetPeers(static_cast<int64_t>(peers_.size()) - ready, ready, 0);
}

}  // namespace lynx::decode
