#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <set>
#include <unordered_map>
#include <utility>

#include "absl/time/time.h"
#include "services/router/membership/node_table.h"

namespace lynx::router {

// Measures how long the nodes take to free what a client left behind: from its leaving to the last
// node's Terminal, which each sends once the sequence's blocks have returned.
//
// Pure bookkeeping; not thread-safe.
class ReleaseWatch {
 public:
  // A Cancel went to these nodes because a client left. Not empty.
  void Begin(uint64_t wire_id, std::set<NodeId> nodes, absl::Time now);
  // The node's last word on a sequence; how long all of them took, if it was the last one missing.
  std::optional<absl::Duration> OnTerminal(uint64_t wire_id, NodeId from, absl::Time now);
  // Its words will not come.
  void OnNodeGone(NodeId node);

  size_t size() const { return open_.size(); }

 private:
  // A word may be lost, and a node that knew nothing of the sequence any more says none.
  static constexpr absl::Duration kForgetAfter = absl::Seconds(30);
  static constexpr size_t kMost = 4096;

  struct Release {
    absl::Time began;
    std::set<NodeId> nodes;
  };
  std::unordered_map<uint64_t, Release> open_;
  std::deque<std::pair<absl::Time, uint64_t>> by_time_;  // Of closed ones too.
};

}  // namespace lynx::router
