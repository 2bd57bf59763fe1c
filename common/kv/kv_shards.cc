#include "common/kv/kv_shards.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"

namespace lynx::kv {

KvShards::KvShards(KvArena& whole)
    : layout_(whole.layout()), shards_{{&whole, 0}}, readers_(shards_) {}

absl::StatusOr<KvShards> KvShards::Create(const KvLayout& whole, std::vector<Shard> shards) {
  std::vector<Shard> readers;
  int32_t heads = 0;
  for (size_t i = 0; i < shards.size(); ++i) {
    const auto wrong = [&](const auto&... what) {
      return absl::InvalidArgumentError(absl::StrCat("the KV of rank ", i, " ", what...));
    };
    const KvLayout& layout = shards[i].arena->layout();
    KvLayout wanted = whole;
    wanted.kv_heads = layout.kv_heads;
    if (layout != wanted) return wrong("has another layout than that of the node");
    if (shards[i].arena->blocks() != shards[0].arena->blocks()) {
      return wrong("has ", shards[i].arena->blocks(), " blocks, that of rank 0 ",
                   shards[0].arena->blocks());
    }
    if (shards[i].first_head < 0 || shards[i].first_head + layout.kv_heads > whole.kv_heads) {
      return wrong("begins at head ", shards[i].first_head, " with ", layout.kv_heads, " of ",
                   whole.kv_heads);
    }
    if (shards[i].first_head != heads) continue;
    readers.push_back(shards[i]);
    heads += layout.kv_heads;
  }
  if (heads != whole.kv_heads) {
    return absl::InvalidArgumentError(
        absl::StrCat("no rank has KV head ", heads, " of ", whole.kv_heads));
  }
  return KvShards(whole, std::move(shards), std::move(readers));
}

void KvShards::Read(int32_t layer, BlockId block,
                    std::vector<std::span<const std::byte>>& parts) const {
  if (readers_.size() == 1) {
    parts.push_back(readers_[0].arena->BlockLayerSpan(layer, block));
    return;
  }
  for (int64_t half = 0; half < layout_.Halves(); ++half) {
    for (const Shard& shard : readers_) {
      const std::span<const std::byte> bytes = shard.arena->BlockLayerSpan(layer, block);
      const size_t each = bytes.size() / static_cast<size_t>(layout_.Halves());
      parts.push_back(bytes.subspan(static_cast<size_t>(half) * each, each));
    }
  }
}

void KvShards::Write(int32_t layer, BlockId block, int64_t offset,
                     std::span<const std::byte> bytes) const {
  const auto size = static_cast<int64_t>(bytes.size());
  LYNX_CHECK(offset >= 0 && offset + size <= layout_.BlockLayerBytes());
  const int64_t half_bytes = layout_.BlockLayerBytes() / layout_.Halves();
  const int64_t head_bytes = half_bytes / layout_.kv_heads;
  for (const Shard& shard : shards_) {
    const int64_t each = shard.arena->layout().kv_heads * head_bytes;
    for (int64_t half = 0; half < layout_.Halves(); ++half) {
      // Of the whole block.
      const int64_t begin = half * half_bytes + shard.first_head * head_bytes;
      const int64_t from = std::max(begin, offset);
      const int64_t past = std::min(begin + each, offset + size);
      if (from >= past) continue;
      std::memcpy(shard.arena->BlockLayer(layer, block) + half * each + (from - begin),
                  bytes.data() + (from - offset), static_cast<size_t>(past - from));
    }
  }
}

}  // namespace lynx::kv
