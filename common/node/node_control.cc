#include "common/node/node_control.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "common/base/check.h"
#include "common/telemetry/log.h"

namespace lynx::node {

using telemetry::LogInfo;
using telemetry::LogWarning;

size_t MaxControlMessageBytes(int32_t max_context_tokens, int32_t vocab_size) {
  constexpr size_t kTokenBytes = 5;  // A varint of 31 bits.
  constexpr size_t kBiasBytes = 13;  // Tag and length; tag and id; tag and float.
  constexpr size_t kTheRest = 64 << 10;
  return kTheRest + kTokenBytes * static_cast<size_t>(max_context_tokens) +
         kBiasBytes * static_cast<size_t>(vocab_size);
}

NodeControl::NodeControl(const Options& options, EventLoop& loop, rpc::Channel& channel,
                         Delegate& delegate)
    : options_(options), loop_(loop), channel_(channel), delegate_(delegate) {
  LYNX_CHECK(options.incarnation != 0 && options.router_timeout > absl::ZeroDuration());
}

NodeControl::~NodeControl() {
  loop_.CancelTimer(check_timer_);
  loop_.CancelTimer(load_timer_);
}

void NodeControl::Start() {
  channel_.Start(*this);
  CheckRouters();
}

void NodeControl::CheckRouters() {
  // Checks far apart: this process did not run, and what routers said meanwhile is still to be
  // read.
  const absl::Duration since = loop_.Now() - last_check_;
  const bool slept = since > options_.router_timeout / 2;
  last_check_ = loop_.Now();
  if (slept) {
    for (auto& [incarnation, router] : routers_) {
      router.last_heard = std::min(loop_.Now(), router.last_heard + since);
    }
  }
  std::vector<Incarnation> lost;
  for (const auto& [incarnation, router] : routers_) {
    if (loop_.Now() - router.last_heard >= options_.router_timeout) lost.push_back(incarnation);
  }
  for (Incarnation router : lost) {
    LogWarning("router silent, cancelling its sequences", {{"router", HexId(router)}});
    channel_.Disconnect(routers_[router].peer);
    routers_.erase(router);
    delegate_.OnRouterLost(router);
  }
  if (const int64_t refused = std::exchange(refused_pings_, 0); refused > 0) {
    LogWarning(
        "too many routers, heartbeats of others ignored",
        {{"routers", std::to_string(routers_.size())}, {"ignored", std::to_string(refused)}});
  }
  check_timer_ = loop_.RunAfter(options_.router_timeout / 4, [this] { CheckRouters(); });
}

void NodeControl::OnMessage(rpc::PeerId peer, proto::Envelope envelope) {
  const Incarnation sender = envelope.sender();
  if (sender == 0) return;
  if (envelope.body_case() == proto::Envelope::kPing) {
    auto it = routers_.find(sender);
    if (it == routers_.end()) {
      if (static_cast<int32_t>(routers_.size()) >= options_.max_routers) {
        ++refused_pings_;
        return;
      }
      it = routers_.emplace(sender, Router{}).first;
      LogInfo("router connected", {{"router", HexId(sender)}});
    }
    if (!Follow(sender, envelope.membership())) return;
    it->second.peer = peer;
    // No others are a sign that it has this node: a damaged number makes the node deaf for one
    // timeout, not for ever.
    if (envelope.membership() == it->second.membership) it->second.last_heard = loop_.Now();
    const auto& sequences = envelope.ping().sequences();
    delegate_.OnRouterAlive(sender, {sequences.data(), static_cast<size_t>(sequences.size())});
    proto::Envelope reply;
    *reply.mutable_node_status() = delegate_.Status();
    Reply(peer, sender, std::move(reply));
    it->second.prefixes_told.reset();
    if (envelope.ping().has_prefixes_seen()) {
      // What was told since then may have been lost.
      it->second.prefixes_told = envelope.ping().prefixes_seen();
      ReportPrefixes(sender, it->second);
    }
    return;
  }
  // Requests meant for a former self, or of a router we do not hear, are not ours to serve: the
  // router learns our incarnation from the next status.
  if (envelope.receiver() != options_.incarnation) return;
  auto it = routers_.find(sender);
  if (it == routers_.end() || !Follow(sender, envelope.membership())) return;
  it->second.peer = peer;
  switch (envelope.body_case()) {
    case proto::Envelope::kReserve:
    case proto::Envelope::kPrefill:
    case proto::Envelope::kCancel:
    case proto::Envelope::kHandOff:
    case proto::Envelope::kDrain:
      delegate_.OnRequest(sender, envelope);
      return;
    default:
      LogWarning("unexpected control message", {{"router", HexId(sender)}});
  }
}

bool NodeControl::Follow(Incarnation router, uint64_t membership) {
  uint64_t& current = routers_.at(router).membership;
  if (membership == 0 || membership == current) return true;
  if (membership < current) return false;
  const bool returned = std::exchange(current, membership) != 0;
  if (returned) {
    LogWarning("router had given this node up, cancelling its former sequences",
               {{"router", HexId(router)}});
    delegate_.OnRouterLost(router);
  }
  return true;
}

void NodeControl::Send(Incarnation router, proto::Envelope envelope) {
  auto it = routers_.find(router);
  if (it == routers_.end()) return;
  Reply(it->second.peer, router, std::move(envelope));
}

void NodeControl::LoadChanged() {
  if (load_timer_ != 0) return;
  load_timer_ = loop_.RunAfter(last_broadcast_ + options_.load_interval - loop_.Now(), [this] {
    load_timer_ = 0;
    BroadcastStatus();
  });
}

void NodeControl::BroadcastStatus() {
  last_broadcast_ = loop_.Now();
  const proto::NodeStatus status = delegate_.Status();
  const kv::PrefixLedger* prefixes = delegate_.Prefixes();
  for (auto& [incarnation, router] : routers_) {
    proto::Envelope envelope;
    *envelope.mutable_node_status() = status;
    Reply(router.peer, incarnation, std::move(envelope));
    if (prefixes != nullptr &&
        router.prefixes_told.value_or(prefixes->changes()) != prefixes->changes()) {
      ReportPrefixes(incarnation, router);
    }
  }
}

void NodeControl::ReportPrefixes(Incarnation incarnation, Router& router) {
  const kv::PrefixLedger* prefixes = delegate_.Prefixes();
  if (prefixes == nullptr) return;
  const kv::PrefixLedger::Report report = prefixes->Since(*router.prefixes_told);
  proto::Envelope envelope;
  proto::PrefixReport& message = *envelope.mutable_prefix_report();
  message.set_from(report.from);
  message.set_to(report.to);
  message.mutable_added()->Add(report.added.begin(), report.added.end());
  message.mutable_removed()->Add(report.removed.begin(), report.removed.end());
  message.set_digest(report.digest);
  router.prefixes_told = report.to;
  Reply(router.peer, incarnation, std::move(envelope));
}

void NodeControl::Reply(rpc::PeerId peer, Incarnation router, proto::Envelope envelope) {
  envelope.set_sender(options_.incarnation);
  envelope.set_receiver(router);
  // A lost message is answered by the router's own deadlines, whatever the reason it was lost.
  channel_.Send(peer, std::move(envelope)).IgnoreError();
}

}  // namespace lynx::node
