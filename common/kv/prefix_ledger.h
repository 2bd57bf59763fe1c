#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "common/kv/prefix_hash.h"

namespace lynx::kv {

// Of a set of prefixes: equal sets have equal ones. Of a set that gains or loses one prefix, the
// old digest XOR that of the prefix.
uint64_t PrefixDigest(std::span<const PrefixHash> prefixes);

// Which prefixes a PrefixCache holds, as a numbered series of changes: whoever has seen the first n
// of them is told the rest, or everything where they are too far behind.
//
// Bounded: what comes after the first kMaxPrefixes held at a time is left out. One thread.
class PrefixLedger {
 public:
  static constexpr size_t kMaxPrefixes = size_t{1} << 15;
  static constexpr size_t kMaxChanges = size_t{1} << 12;  // Remembered.

  struct Report {
    uint64_t from = 0;  // To those who have seen so many changes; 0: to anybody, it is everything.
    uint64_t to = 0;    // What they have seen then.
    std::vector<PrefixHash> added;
    std::vector<PrefixHash> removed;
    uint64_t digest = 0;  // Of all prefixes, then.
  };

  // A prefix may be added several times, and is there until it is removed as often.
  void Add(PrefixHash prefix);
  void Remove(PrefixHash prefix);

  uint64_t changes() const { return changes_; }
  Report Since(uint64_t seen) const;

 private:
  void Note(PrefixHash prefix, bool added);

  std::unordered_map<PrefixHash, int32_t> prefixes_;
  std::deque<std::pair<PrefixHash, bool>> last_;  // The last changes; true: added.
  uint64_t changes_ = 0;
  uint64_t digest_ = 0;
};

}  // namespace lynx::kv
