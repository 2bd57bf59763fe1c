#include "common/kv/prefix_cache.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "common/base/check.h"

namespace lynx::kv {

PrefixCache::PrefixCache(BlockPool& pool, PrefixLedger* shared)
    : pool_(pool), ledger_(shared != nullptr ? *shared : own_ledger_) {
  pool_.SetReclaimer(this);
}

PrefixCache::~PrefixCache() {
  for (auto& [key, node] : nodes_) pool_.Drop(node->blocks);
  pool_.SetReclaimer(nullptr);
}

PrefixCache::Found PrefixCache::Find(PrefixHash root, std::span<const TokenId> tokens,
                                     bool lossy_too) {
  std::vector<Node*> path;
  PrefixHash hash = root;
  // One token at least stays to be computed.
  for (; tokens.size() > kBlockTokens; tokens = tokens.subspan(kBlockTokens)) {
    const std::span<const TokenId> block = tokens.first(kBlockTokens);
    hash = NextPrefix(hash, block);
    Node* node = Next(hash, path.empty() ? nullptr : path.back(), lossy_too);
    if (node == nullptr || !std::ranges::equal(node->tokens, block)) break;
    path.push_back(node);
  }
  return Share(path);
}

PrefixCache::Found PrefixCache::Find(std::span<const PrefixHash> hashes, bool lossy_too) {
  std::vector<Node*> path;
  for (const PrefixHash hash : hashes) {
    Node* node = Next(hash, path.empty() ? nullptr : path.back(), lossy_too);
    if (node == nullptr) break;
    path.push_back(node);
  }
  Found found = Share(path);
  const auto length = static_cast<size_t>(found.blocks.end_block());
  found.tokens.reserve(length * kBlockTokens);
  for (size_t i = 0; i < length; ++i) {
    found.tokens.insert(found.tokens.end(), path[i]->tokens.begin(), path[i]->tokens.end());
  }
  return found;
}

PrefixCache::Node* PrefixCache::Next(PrefixHash hash, const Node* parent, bool lossy_too) const {
  for (const bool exact : {true, false}) {
    if (!exact && !lossy_too) break;
    const auto it = nodes_.find({hash, exact});
    if (it != nodes_.end() && it->second->parent == parent) return it->second.get();
  }
  return nullptr;
}

PrefixCache::Found PrefixCache::Share(std::span<Node* const> path) {
  const KvGroups& groups = pool_.groups();
  const auto reaches = [&](size_t end) {
    for (int32_t g = 0; g < groups.count(); ++g) {
      const int32_t first = groups.FirstBlock(g, static_cast<int32_t>(end) * kBlockTokens);
      for (size_t i = static_cast<size_t>(first); i < end; ++i) {
        if (path[i]->blocks[static_cast<size_t>(g)] == kNoBlock) return false;
      }
    }
    return true;
  };
  size_t end = path.size();
  while (end > 0 && !reaches(end)) --end;
  if (end == 0) return {};
  std::vector<BlockId> blocks;
  for (int32_t g = 0; g < groups.count(); ++g) {
    const int32_t first = groups.FirstBlock(g, static_cast<int32_t>(end) * kBlockTokens);
    for (size_t i = 0; i < end; ++i) {
      blocks.push_back(i < static_cast<size_t>(first) ? kNoBlock
                                                      : path[i]->blocks[static_cast<size_t>(g)]);
    }
  }
  Found found;
  for (Node* node : path.first(end)) {
    Touch(*node);
    if (node->key.exact) found.exact_tokens += kBlockTokens;
  }
  found.blocks = BlockTable::Shared(pool_, std::move(blocks));
  return found;
}

void PrefixCache::Keep(PrefixHash root, std::span<const TokenId> tokens, int32_t exact_tokens,
                       const BlockTable& blocks) {
  const KvGroups& groups = pool_.groups();
  const int64_t full =
      std::min<int64_t>(static_cast<int64_t>(tokens.size()) / kBlockTokens, blocks.end_block());
  PrefixHash hash = root;
  Node* parent = nullptr;
  for (int64_t i = 0; i < full; ++i) {
    const auto at = static_cast<size_t>(i);
    const std::span<const TokenId> own = tokens.subspan(at * kBlockTokens, kBlockTokens);
    hash = NextPrefix(hash, own);
    const Key key = {hash, (i + 1) * kBlockTokens <= exact_tokens};
    auto [it, added] = nodes_.try_emplace(key);
    if (added) {
      it->second = std::make_unique<Node>();
      ledger_.Add(hash);
      Node& node = *it->second;
      node.key = key;
      node.parent = parent;
      node.tokens.assign(own.begin(), own.end());
      node.blocks.assign(static_cast<size_t>(groups.count()), kNoBlock);
      if (parent != nullptr && parent->children++ == 0) leaves_.erase(parent->used);
    } else if (it->second->parent != parent || !std::ranges::equal(it->second->tokens, own)) {
      return;  // Another prefix has that hash, or one that is lossy from another block on.
    }
    Node& node = *it->second;
    for (int32_t g = 0; g < groups.count(); ++g) {
      BlockId& kept = node.blocks[static_cast<size_t>(g)];
      const BlockId block = blocks.group(g)[at];
      if (kept != kNoBlock || block == kNoBlock) continue;
      kept = block;
      pool_.Keep(block);
    }
    Touch(node);
    parent = &node;
  }
}

void PrefixCache::Touch(Node& node) {
  if (node.children == 0) leaves_.erase(node.used);
  node.used = ++clock_;
  if (node.children == 0) leaves_.emplace(node.used, &node);
}

void PrefixCache::Forget(Node& node) {
  LYNX_CHECK(node.children == 0);
  leaves_.erase(node.used);
  pool_.Drop(node.blocks);
  if (node.parent != nullptr && --node.parent->children == 0) {
    leaves_.emplace(node.parent->used, node.parent);
  }
  ledger_.Remove(node.key.hash);
  nodes_.erase(node.key);
}

void PrefixCache::Reclaim(int64_t blocks) {
  int64_t freed = 0;
  // A sequence that reads a block reads all before it, except those its windows have passed.
  for (auto it = leaves_.begin(); it != leaves_.end() && freed < blocks;) {
    Node& node = *it->second;
    const int64_t idle = pool_.IdleAmong(node.blocks);
    if (idle == 0) {
      ++it;
      continue;
    }
    freed += idle;
    const auto next = std::next(it);
    Node* const parent = node.parent;
    Forget(node);
    // The parent, used just before it, is the next to go.
    it = parent != nullptr && parent->children == 0 ? leaves_.find(parent->used) : next;
  }
  for (auto it = nodes_.begin(); it != nodes_.end() && freed < blocks; ++it) {
    for (BlockId& block : it->second->blocks) {
      if (pool_.IdleAmong({&block, 1}) == 0) continue;
      pool_.Drop({&block, 1});
      block = kNoBlock;
      ++freed;
    }
  }
}

}  // namespace lynx::kv
