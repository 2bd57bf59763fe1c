#pragma once

#include <map>

#include "absl/time/time.h"
#include "services/router/membership/node_table.h"

namespace lynx::router {

// A circuit breaker for each node: one that fails again and again, though it answers heartbeats, is
// passed over for a while, as long as others can take the work. Counts failures since the node last
// did what it was asked; at `failures` of them the circuit opens for `open`. Then the node is tried
// again: the next failure opens the circuit for twice as long, up to `most_open`; success closes
// it. Pure; not thread-safe.
class NodeBreakers {
 public:
  struct Options {
    int failures = 5;
    absl::Duration open = absl::Seconds(2);
    absl::Duration most_open = absl::Minutes(1);
  };

  explicit NodeBreakers(const Options& options) : options_(options) {}

  void OnFailure(NodeId node, absl::Time now);
  void OnSuccess(NodeId node) { nodes_.erase(node); }
  void OnGone(NodeId node) { nodes_.erase(node); }

  bool Open(NodeId node, absl::Time now) const;
  // Circuits that opened and have not closed, nodes that are tried again included.
  int tripped() const;

  bool empty() const { return nodes_.empty(); }

 private:
  struct Breaker {
    int failures = 0;
    absl::Duration open_for = absl::ZeroDuration();  // Zero: has not opened.
    absl::Time open_until = absl::InfinitePast();
  };

  const Options options_;
  std::map<NodeId, Breaker> nodes_;  // Those that failed and did nothing well since.
};

}  // namespace lynx::router
