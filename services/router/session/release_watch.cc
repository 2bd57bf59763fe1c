#include "services/router/session/release_watch.h"

#include <iterator>

namespace lynx::router {

void ReleaseWatch::Begin(uint64_t wire_id, std::set<NodeId> nodes, absl::Time now) {
  while (!by_time_.empty() &&
         (by_time_.front().first + kForgetAfter <= now || by_time_.size() >= kMost)) {
    open_.erase(by_time_.front().second);
    by_time_.pop_front();
  }
  by_time_.emplace_back(now, wire_id);
  open_[wire_id] = {now, std::move(nodes)};
}

std::optional<absl::Duration> ReleaseWatch::OnTerminal(uint64_t wire_id, NodeId from,
                                                       absl::Time now) {
  const auto it = open_.find(wire_id);
  if (it == open_.end() || it->second.nodes.erase(from) == 0 || !it->second.nodes.empty()) {
    return std::nullopt;
  }
  const absl::Duration took = now - it->second.began;
  open_.erase(it);
  return took;
}

void ReleaseWatch::OnNodeGone(NodeId node) {
  for (auto it = open_.begin(); it != open_.end();) {
    std::set<NodeId>& nodes = it->second.nodes;
    nodes.erase(node);
    it = nodes.empty() ? open_.erase(it) : std::next(it);
  }
}

}  // namespace lynx::router
