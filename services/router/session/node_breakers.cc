#include "services/router/session/node_breakers.h"

#include <algorithm>

namespace lynx::router {

void NodeBreakers::OnFailure(NodeId node, absl::Time now) {
  Breaker& breaker = nodes_[node];
  // What was sent before the circuit opened may fail while it is open: no news.
  if (now < breaker.open_until) return;
  ++breaker.failures;
  if (breaker.open_for == absl::ZeroDuration() && breaker.failures < options_.failures) return;
  breaker.open_for = breaker.open_for == absl::ZeroDuration()
                         ? options_.open
                         : std::min(breaker.open_for * 2, options_.most_open);
  breaker.open_until = now + breaker.open_for;
}

bool NodeBreakers::Open(NodeId node, absl::Time now) const {
  const auto it = nodes_.find(node);
  return it != nodes_.end() && now < it->second.open_until;
}

int NodeBreakers::tripped() const {
  return static_cast<int>(std::count_if(nodes_.begin(), nodes_.end(), [](const auto& node) {
    return node.second.open_for > absl::ZeroDuration();
  }));
}

}  // namespace lynx::router
