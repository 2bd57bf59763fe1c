#include "common/node/node_control.h"

#include <utility>
#include <vector>

#include "common/base/check.h"
#include "common/telemetry/log.h"

namespace lynx::node {

using telemetry::LogInfo;
using telemetry::LogWarning;

NodeControl::NodeControl(const Options& options, EventLoop& loop, rpc::Channel& channel,
                         Delegate& delegate)
    : options_(options), loop_(loop), channel_(channel), delegate_(delegate) {
  LYNX_CHECK(options.incarnation != 0 && options.router_timeout > absl::ZeroDuration());
}

NodeControl::~NodeControl() { loop_.CancelTimer(check_timer_); }

void NodeControl::Start() {
  channel_.Start(*this);
  CheckRouters();
}

void NodeControl::CheckRouters() {
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
  check_timer_ = loop_.RunAfter(options_.router_timeout / 4, [this] { CheckRouters(); });
}

void NodeControl::OnMessage(rpc::PeerId peer, proto::Envelope envelope) {
  const Incarnation sender = envelope.sender();
  if (sender == 0) return;
  if (envelope.body_case() == proto::Envelope::kPing) {
    auto it = routers_.find(sender);
    if (it == routers_.end()) {
      if (static_cast<int32_t>(routers_.size()) >= options_.max_routers) {
        LogWarning("too many routers, heartbeat ignored", {{"router", HexId(sender)}});
        return;
      }
      it = routers_.emplace(sender, Router{}).first;
      LogInfo("router connected", {{"router", HexId(sender)}});
    }
    it->second = {peer, loop_.Now()};
    delegate_.OnRouterAlive(sender);
    proto::Envelope reply;
    *reply.mutable_node_status() = delegate_.Status();
    Reply(peer, sender, std::move(reply));
    return;
  }
  // Requests meant for a former self, or of a router we do not hear, are not ours to serve: the
  // router learns our incarnation from the next status.
  if (envelope.receiver() != options_.incarnation) return;
  auto it = routers_.find(sender);
  if (it == routers_.end()) return;
  it->second.peer = peer;
  switch (envelope.body_case()) {
    case proto::Envelope::kReserve:
    case proto::Envelope::kPrefill:
    case proto::Envelope::kCancel:
      delegate_.OnRequest(sender, envelope);
      return;
    default:
      LogWarning("unexpected control message", {{"router", HexId(sender)}});
  }
}

void NodeControl::Send(Incarnation router, proto::Envelope envelope) {
  auto it = routers_.find(router);
  if (it == routers_.end()) return;
  Reply(it->second.peer, router, std::move(envelope));
}

void NodeControl::BroadcastStatus() {
  for (const auto& [incarnation, router] : routers_) {
    proto::Envelope envelope;
    *envelope.mutable_node_status() = delegate_.Status();
    Reply(router.peer, incarnation, std::move(envelope));
  }
}

void NodeControl::Reply(rpc::PeerId peer, Incarnation router, proto::Envelope envelope) {
  envelope.set_sender(options_.incarnation);
  envelope.set_receiver(router);
  // A lost message is answered by the router's own deadlines, whatever the reason it was lost.
  channel_.Send(peer, std::move(envelope)).IgnoreError();
}

}  // namespace lynx::node
