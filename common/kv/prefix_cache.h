#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "common/base/dtype.h"
#include "common/kv/block_pool.h"
#include "common/kv/block_table.h"
#include "common/kv/prefix_hash.h"
#include "common/kv/prefix_ledger.h"

namespace lynx::kv {

// Keeps the KV of what was computed, so that a later prompt that begins alike does not compute it
// again. A block that only this cache holds counts as free in the pool and is given up, the one
// used longest ago first, when somebody needs it: keeping costs nobody anything.
//
// What two prompts share ends at a block's end, never covers a whole prompt (its last token's
// logits are needed), and in layers with a window only if the window before that end is still
// there.
//
// Exactness: KV that a lossy plan has touched is never given to a sequence that must be exact. An
// exact block follows exact ones only; a lossy one may follow either.
//
// On one thread, the one that takes blocks from the pool; blocks may be released on others.
class PrefixCache final : private BlockPool::Reclaimer {
 public:
  // The pool outlives the cache, which is its reclaimer. `shared`: the ledger of all caches of a
  // node that has several pools, which outlives them; null: one of its own.
  explicit PrefixCache(BlockPool& pool, PrefixLedger* shared = nullptr);
  ~PrefixCache() override;
  PrefixCache(const PrefixCache&) = delete;
  PrefixCache& operator=(const PrefixCache&) = delete;

  // The longest prefix that is here.
  struct Found {
    BlockTable blocks;         // Shared with the cache: read them, never write them. Empty: none.
    int32_t exact_tokens = 0;  // Of its leading rows, those that no lossy plan has touched.
    std::vector<TokenId> tokens;  // What it is the KV of; of a search by hashes only.
  };

  // Of `tokens`. `lossy_too`: KV of lossy plans will do.
  Found Find(PrefixHash root, std::span<const TokenId> tokens, bool lossy_too);
  // Of a prompt known by its hashes: it may be another one's, so compare Found::tokens before the
  // blocks count as the prompt's.
  Found Find(std::span<const PrefixHash> hashes, bool lossy_too);

  // Keeps the full blocks of `blocks`, the KV of `tokens`, of which rows before `exact_tokens` are
  // exact. Blocks already here stay as they are.
  void Keep(PrefixHash root, std::span<const TokenId> tokens, int32_t exact_tokens,
            const BlockTable& blocks);

  // What it holds, for others to follow. In layers with windows not all of it may be of use.
  const PrefixLedger& ledger() const { return ledger_; }
  size_t size() const { return nodes_.size(); }  // Prefixes, each a block longer than another.

 private:
  struct Key {
    PrefixHash hash;
    bool exact;
    friend bool operator==(const Key&, const Key&) = default;
  };
  struct HashKey {
    size_t operator()(const Key& key) const { return key.hash ^ (key.exact ? 1 : 0); }
  };
  struct Node {
    Key key;
    Node* parent = nullptr;  // Null: the first block of a prompt.
    std::vector<TokenId> tokens;
    std::vector<BlockId> blocks;  // By group; kNoBlock: not kept.
    int32_t children = 0;
    uint64_t used = 0;  // In leaves_ while it has no children.
  };

  void Reclaim(int64_t blocks) override;
  // The block of that hash behind `parent`, an exact one if there is.
  Node* Next(PrefixHash hash, const Node* parent, bool lossy_too) const;
  Found Share(std::span<Node* const> path);
  void Touch(Node& node);
  void Forget(Node& node);  // One without children.

  BlockPool& pool_;
  std::unordered_map<Key, std::unique_ptr<Node>, HashKey> nodes_;
  std::map<uint64_t, Node*> leaves_;  // By last use.
  PrefixLedger own_ledger_;
  PrefixLedger& ledger_;
  uint64_t clock_ = 0;
};

}  // namespace lynx::kv
