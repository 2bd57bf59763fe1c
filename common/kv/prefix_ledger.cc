#include "common/kv/prefix_ledger.h"

#include "common/base/mix.h"

namespace lynx::kv {

uint64_t PrefixDigest(std::span<const PrefixHash> prefixes) {
  uint64_t digest = 0;
  for (const PrefixHash prefix : prefixes) digest ^= SplitMix(prefix);
  return digest;
}

void PrefixLedger::Add(PrefixHash prefix) {
  auto it = prefixes_.find(prefix);
  if (it != prefixes_.end()) {
    ++it->second;
  } else if (prefixes_.size() < kMaxPrefixes) {
    prefixes_.emplace(prefix, 1);
    Note(prefix, true);
  }
}

void PrefixLedger::Remove(PrefixHash prefix) {
  auto it = prefixes_.find(prefix);
  if (it == prefixes_.end() || --it->second > 0) return;
  prefixes_.erase(it);
  Note(prefix, false);
}

void PrefixLedger::Note(PrefixHash prefix, bool added) {
  ++changes_;
  digest_ ^= PrefixDigest({&prefix, 1});
  last_.emplace_back(prefix, added);
  if (last_.size() > kMaxChanges) last_.pop_front();
}

PrefixLedger::Report PrefixLedger::Since(uint64_t seen) const {
  Report report;
  report.to = changes_;
  report.digest = digest_;
  if (seen == 0 || seen > changes_ || changes_ - seen > last_.size()) {
    for (const auto& [prefix, count] : prefixes_) report.added.push_back(prefix);
    return report;
  }
  report.from = seen;
  std::unordered_map<PrefixHash, bool> news;  // As each is in the end.
  const size_t first = last_.size() - static_cast<size_t>(changes_ - seen);
  for (size_t i = first; i < last_.size(); ++i) news[last_[i].first] = last_[i].second;
  for (const auto& [prefix, added] : news)
    (added ? report.added : report.removed).push_back(prefix);
  return report;
}

}  // namespace lynx::kv
