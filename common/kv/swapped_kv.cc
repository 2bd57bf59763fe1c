#include "common/kv/swapped_kv.h"

#include <algorithm>

#include "common/base/check.h"

namespace lynx::kv {
namespace {

// Calls `visit` with each layer and block that the copy is of, and the block's index in the table,
// in a fixed order.
template <typename Visit>
void ForEachPart(const KvLayout& layout, std::span<const BlockId> tables, int32_t position,
                 Visit visit) {
  const KvGroups& groups = layout.groups;
  const size_t length = tables.size() / static_cast<size_t>(groups.count());
  const int64_t past = BlocksFor(position);
  LYNX_CHECK(past <= static_cast<int64_t>(length));
  for (int32_t layer = 0; layer < layout.layers; ++layer) {
    const int32_t group = groups.group_of(layer);
    const auto blocks = tables.subspan(static_cast<size_t>(group) * length, length);
    for (int64_t i = groups.FirstBlock(group, position); i < past; ++i) {
      visit(layer, blocks[static_cast<size_t>(i)], i);
    }
  }
}

}  // namespace

SwappedKv::SwappedKv(KvArena& kv, std::span<const BlockId> blocks, int32_t position)
    : position_(position) {
  bytes_.reserve(static_cast<size_t>(BytesOf(kv.layout(), position)));
  ForEachPart(kv.layout(), blocks, position, [&](int32_t layer, BlockId block, int64_t) {
    const auto part = kv.BlockLayerSpan(layer, block);
    bytes_.insert(bytes_.end(), part.begin(), part.end());
  });
}

void SwappedKv::Restore(KvArena& kv, std::span<const BlockId> blocks, int32_t first_block) const {
  std::span<const std::byte> from = bytes_;
  ForEachPart(kv.layout(), blocks, position_, [&](int32_t layer, BlockId block, int64_t index) {
    const auto to = kv.BlockLayerSpan(layer, block);
    if (index >= first_block) std::copy_n(from.begin(), to.size(), to.begin());
    from = from.subspan(to.size());
  });
  LYNX_CHECK(from.empty());
}

int64_t SwappedKv::BytesOf(const KvLayout& layout, int32_t position) {
  // A block is of the layers of one group; all groups have equally many.
  return layout.groups.BlocksHeld(position, BlocksFor(position)) * layout.BlockLayerBytes() *
         layout.layers / layout.groups.count();
}

}  // namespace lynx::kv
