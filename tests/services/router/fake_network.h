#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/concurrency/event_loop.h"
#include "common/rpc/channel.h"

namespace lynx::router {

// The router's end of a control plane whose other ends are functions, on a simulated loop. Messages
// take no time unless `fault` says otherwise.
class FakeNetwork final : public rpc::Channel {
 public:
  // What stands at an endpoint: gets what the router sends.
  using Node = std::function<void(const proto::Envelope&)>;
  // When to deliver one message: no entry loses it, two double it.
  using Fault = std::function<std::vector<absl::Duration>(const proto::Envelope&)>;

  explicit FakeNetwork(EventLoop& loop) : loop_(loop) {}

  void Plug(const std::string& endpoint, Node node) { nodes_[endpoint] = std::move(node); }
  void Unplug(const std::string& endpoint) { nodes_.erase(endpoint); }
  void set_fault(Fault fault) { fault_ = std::move(fault); }
  // The router's connection to `endpoint` breaks.
  void Break(const std::string& endpoint) {
    for (const auto& [peer, at] : peers_) {
      if (at == endpoint) return handler_->OnDisconnected(peer);
    }
  }
  // Sends fail with this at `endpoint`; OK: no longer.
  void set_send_error(const std::string& endpoint, absl::Status error) {
    send_errors_[endpoint] = std::move(error);
  }

  // From a node to the router.
  void Deliver(const std::string& endpoint, proto::Envelope envelope) {
    for (const absl::Duration delay : When(envelope)) {
      loop_.RunAfter(delay, [this, endpoint, envelope] {
        for (const auto& [peer, at] : peers_) {
          if (at == endpoint) return handler_->OnMessage(peer, envelope);
        }
      });
    }
  }

  int connects(const std::string& endpoint) const {
    auto it = connects_.find(endpoint);
    return it == connects_.end() ? 0 : it->second;
  }
  size_t peers() const { return peers_.size(); }

  void Start(Handler& handler) override { handler_ = &handler; }
  absl::StatusOr<rpc::PeerId> Connect(const std::string& endpoint) override {
    ++connects_[endpoint];
    peers_[next_] = endpoint;
    return next_++;
  }
  void Disconnect(rpc::PeerId peer) override { peers_.erase(peer); }
  absl::Status Send(rpc::PeerId peer, proto::Envelope envelope) override {
    auto it = peers_.find(peer);
    if (it == peers_.end()) return absl::NotFoundError("no such peer");
    auto error = send_errors_.find(it->second);
    if (error != send_errors_.end() && !error->second.ok()) return error->second;
    if (!nodes_.contains(it->second)) return absl::UnavailableError("not connected");
    for (const absl::Duration delay : When(envelope)) {
      loop_.RunAfter(delay, [this, endpoint = it->second, envelope] {
        auto node = nodes_.find(endpoint);
        if (node != nodes_.end()) node->second(envelope);
      });
    }
    return absl::OkStatus();
  }

 private:
  std::vector<absl::Duration> When(const proto::Envelope& envelope) {
    return fault_ ? fault_(envelope) : std::vector<absl::Duration>{absl::ZeroDuration()};
  }

  EventLoop& loop_;
  Handler* handler_ = nullptr;
  std::map<std::string, Node> nodes_;
  std::map<std::string, absl::Status> send_errors_;
  std::map<rpc::PeerId, std::string> peers_;
  std::map<std::string, int> connects_;
  Fault fault_;
  rpc::PeerId next_ = 1;
};

}  // namespace lynx::router
