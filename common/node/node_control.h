#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>

#include "absl/time/time.h"
#include "common/base/ids.h"
#include "common/concurrency/event_loop.h"
#include "common/kv/prefix_ledger.h"
#include "common/proto/control.pb.h"
#include "common/rpc/channel.h"

namespace lynx::node {

// Most bytes of a control message to a node: those of the largest prompt with the largest sampling
// parameters. Larger ones are not worth parsing; a flood of tiny entries would hold up heartbeats.
size_t MaxControlMessageBytes(int32_t max_context_tokens, int32_t vocab_size);

// A node's end of the control plane: knows the routers by their heartbeats, answers these with the
// node's status, hands requests to the role's own logic and notices when a router is gone.
//
// Routers are named by incarnation, so a restarted router is a new one and its former sequences are
// cancelled after the timeout. A router that took this node for gone (a frozen process, a broken
// network) and finds it again could not cancel what it gave up: its new membership number does.
//
// All calls and callbacks are on the node's EventLoop.
class NodeControl final : public rpc::Channel::Handler {
 public:
  struct Options {
    Incarnation incarnation = 0;
    absl::Duration router_timeout = absl::Seconds(10);  // > 0; several heartbeats of a router.
    int32_t max_routers = 256;  // > 0; heartbeats of more routers are not answered.
    // Changes of load are told at most so often, between heartbeats.
    absl::Duration load_interval = absl::Milliseconds(50);
  };

  class Delegate {
   public:
    virtual ~Delegate() = default;
    // Everything the node wants routers to know now.
    virtual proto::NodeStatus Status() = 0;
    // reserve, prefill, cancel, hand_off or drain of a live router, addressed to this incarnation.
    virtual void OnRequest(Incarnation router, const proto::Envelope& envelope) = 0;
    // The router went silent for the timeout, or has given this node up and begun anew: nobody
    // waits for its sequences any more.
    virtual void OnRouterLost(Incarnation router) = 0;
    // A heartbeat arrived: what is leased for these sequences of the router lives on.
    virtual void OnRouterAlive(Incarnation router, std::span<const uint64_t> sequences) = 0;
    // What the node keeps of prompts; null: nothing. Lives as long as the delegate.
    virtual const kv::PrefixLedger* Prefixes() const { return nullptr; }
  };

  // All references outlive this object.
  NodeControl(const Options& options, EventLoop& loop, rpc::Channel& channel, Delegate& delegate);
  ~NodeControl() override;

  // Starts delivery.
  void Start();

  // Queues `envelope` (body filled in by the caller) for the router. A router that is gone or stuck
  // costs the message: its sequences end through OnRouterLost.
  void Send(Incarnation router, proto::Envelope envelope);

  // Tells every live router the status now: after a change they should not wait a heartbeat for.
  void BroadcastStatus();
  // The node's load is another now: every live router hears of it within load_interval.
  void LoadChanged();

  int32_t routers() const { return static_cast<int32_t>(routers_.size()); }

  void OnMessage(rpc::PeerId peer, proto::Envelope envelope) override;

 private:
  struct Router {
    rpc::PeerId peer = 0;
    absl::Time last_heard;
    uint64_t membership = 0;
    std::optional<uint64_t> prefixes_told;  // Changes; nothing: it does not want to know.
  };

  void CheckRouters();
  // False: `membership` is one that the router itself has left behind.
  bool Follow(Incarnation router, uint64_t membership);
  void ReportPrefixes(Incarnation incarnation, Router& router);
  void Reply(rpc::PeerId peer, Incarnation router, proto::Envelope envelope);

  const Options options_;
  EventLoop& loop_;
  rpc::Channel& channel_;
  Delegate& delegate_;
  std::map<Incarnation, Router> routers_;
  int64_t refused_pings_ = 0;                       // Since the last check.
  absl::Time last_check_ = absl::InfiniteFuture();  // Future: none yet.
  TimerId check_timer_ = 0;
  TimerId load_timer_ = 0;  // 0: nothing to tell.
  absl::Time last_broadcast_ = absl::InfinitePast();
};

}  // namespace lynx::node
