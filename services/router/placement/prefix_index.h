#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <unordered_set>

#include "common/kv/prefix_hash.h"
#include "common/proto/control.pb.h"
#include "services/router/membership/node_table.h"

namespace lynx::router {

// Which prefixes the nodes hold, as they report it: a guide for placement, never a promise. What
// was lost on the way, or was counted wrong, is found by the number or the digest of the next
// report, and the node is then asked for everything.
//
// Bounded by what a node may report (kv::PrefixLedger::kMaxPrefixes). One thread.
class PrefixIndex {
 public:
  enum class Heard : uint8_t {
    kApplied,
    kStale,      // Late, or one before it is missing.
    kDrift,      // The digest differs.
    kMalformed,  // More than a node may report.
  };
  static constexpr int kHeard = 4;

  Heard OnReport(NodeId node, const proto::PrefixReport& report);
  void OnGone(NodeId node);

  // How much of the node's changes is known: what to tell it, so that it reports the rest. 0: ask
  // for everything.
  uint64_t Seen(NodeId node) const;
  // The longest prefix of a prompt, by the hashes of its blocks, that the node holds.
  int64_t HeldTokens(NodeId node, std::span<const kv::PrefixHash> prompt) const;

  size_t size() const { return size_; }  // Prefixes of all nodes.

 private:
  struct Node {
    uint64_t seen = 0;
    uint64_t digest = 0;
    std::unordered_set<kv::PrefixHash> prefixes;
  };

  std::map<NodeId, Node> nodes_;
  size_t size_ = 0;
};

const char* Name(PrefixIndex::Heard heard);

}  // namespace lynx::router
