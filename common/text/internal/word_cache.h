#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/hash/hash.h"
#include "common/base/mutex.h"

namespace lynx::text::internal {

// The ids of words met lately: texts repeat a few words a lot. Bounded; thread-safe.
//
// Only short words are kept. A full shard is emptied, so that a flood of rare words cannot keep the
// common ones out for good.
class WordCache {
 public:
  // Appends the ids of `word`, asking `encode(word, ids)` (which appends) for those not kept.
  template <typename EncodeWord>
  void Append(std::string_view word, std::vector<int32_t>& ids, const EncodeWord& encode) {
    if (word.size() > kMaxWordBytes) {
      encode(word, ids);
      return;
    }
    const absl::string_view key(word.data(), word.size());
    Shard& shard = shards_[absl::Hash<absl::string_view>()(key) % shards_.size()];
    {
      MutexLock lock(shard.mu);
      const auto it = shard.words.find(key);
      if (it != shard.words.end()) {
        ids.insert(ids.end(), it->second.begin(), it->second.end());
        return;
      }
    }
    std::vector<int32_t> fresh;
    encode(word, fresh);
    ids.insert(ids.end(), fresh.begin(), fresh.end());
    MutexLock lock(shard.mu);
    if (shard.words.size() >= kMaxWordsPerShard) shard.words.clear();
    shard.words.emplace(key, std::move(fresh));
  }

 private:
  static constexpr size_t kMaxWordBytes = 128;
  static constexpr size_t kMaxWordsPerShard = 4096;

  struct Shard {
    Mutex mu;
    absl::flat_hash_map<std::string, std::vector<int32_t>> words LYNX_GUARDED_BY(mu);
  };

  std::array<Shard, 16> shards_;
};

}  // namespace lynx::text::internal
