#include "services/router/placement/prefix_index.h"

#include "common/kv/kv_layout.h"
#include "common/kv/prefix_ledger.h"

namespace lynx::router {

const char* Name(PrefixIndex::Heard heard) {
  switch (heard) {
    case PrefixIndex::Heard::kApplied:
      return "applied";
    case PrefixIndex::Heard::kStale:
      return "stale";
    case PrefixIndex::Heard::kDrift:
      return "drift";
    case PrefixIndex::Heard::kMalformed:
      return "malformed";
  }
  return "?";
}

PrefixIndex::Heard PrefixIndex::OnReport(NodeId id, const proto::PrefixReport& report) {
  constexpr auto kMost = static_cast<int>(kv::PrefixLedger::kMaxPrefixes);
  if (report.added_size() > kMost || report.removed_size() > kMost) {
    OnGone(id);
    return Heard::kMalformed;
  }
  if (report.from() == 0) OnGone(id);
  Node& node = nodes_[id];
  // What is known already may come again: each prefix is told as it is in the end.
  if (report.from() > node.seen || report.to() < node.seen) return Heard::kStale;
  size_ -= node.prefixes.size();
  for (const uint64_t prefix : report.removed()) {
    if (node.prefixes.erase(prefix) > 0) node.digest ^= kv::PrefixDigest({&prefix, 1});
  }
  for (const uint64_t prefix : report.added()) {
    if (node.prefixes.insert(prefix).second) node.digest ^= kv::PrefixDigest({&prefix, 1});
  }
  size_ += node.prefixes.size();
  node.seen = report.to();
  if (node.prefixes.size() <= kv::PrefixLedger::kMaxPrefixes && node.digest == report.digest()) {
    return Heard::kApplied;
  }
  const Heard heard = node.digest == report.digest() ? Heard::kMalformed : Heard::kDrift;
  OnGone(id);
  return heard;
}

void PrefixIndex::OnGone(NodeId id) {
  auto it = nodes_.find(id);
  if (it == nodes_.end()) return;
  size_ -= it->second.prefixes.size();
  nodes_.erase(it);
}

uint64_t PrefixIndex::Seen(NodeId id) const {
  auto it = nodes_.find(id);
  return it != nodes_.end() ? it->second.seen : 0;
}

int64_t PrefixIndex::HeldTokens(NodeId id, std::span<const kv::PrefixHash> prompt) const {
  auto it = nodes_.find(id);
  if (it == nodes_.end()) return 0;
  int64_t blocks = 0;
  for (const kv::PrefixHash prefix : prompt) {
    if (!it->second.prefixes.contains(prefix)) break;
    ++blocks;
  }
  return blocks * kv::kBlockTokens;
}

}  // namespace lynx::router
