#include "common/kv/swapped_kv.h"

#include <cstring>
#include <span>

#include "common/base/check.h"

namespace lynx::kv {
namespace {

// Calls `visit` with the index and the bytes of each block and layer that the copy is of, in a
// fixed order.
template <typename Visit>
void ForEachPart(KvArena& arena, const BlockTable& table, int32_t position, Visit visit) {
  const KvGroups& groups = arena.layout().groups;
  const int64_t past = BlocksFor(position);
  LYNX_CHECK(past <= table.end_block());
  for (int32_t layer = 0; layer < arena.layout().layers; ++layer) {
    const int32_t group = groups.group_of(layer);
    const auto blocks = table.group(group);
    for (int64_t i = groups.FirstBlock(group, position); i < past; ++i) {
      visit(i, arena.BlockLayerSpan(layer, blocks[static_cast<size_t>(i)]));
    }
  }
}

}  // namespace

SwappedKv::SwappedKv(KvArena& arena, const BlockTable& table, int32_t position)
    : position_(position) {
  bytes_.reserve(static_cast<size_t>(BytesOf(arena.layout(), position)));
  ForEachPart(arena, table, position, [&](int64_t, std::span<std::byte> part) {
    bytes_.insert(bytes_.end(), part.begin(), part.end());
  });
}

void SwappedKv::Restore(KvArena& arena, const BlockTable& table, int32_t first_block) const {
  const std::byte* from = bytes_.data();
  ForEachPart(arena, table, position_, [&](int64_t block, std::span<std::byte> part) {
    if (block >= first_block) std::memcpy(part.data(), from, part.size());
    from += part.size();
  });
  LYNX_CHECK(from == bytes_.data() + bytes_.size());
}

int64_t SwappedKv::BytesOf(const KvLayout& layout, int32_t position) {
  // A block is of the layers of one group; all groups have equally many.
  return layout.groups.BlocksHeld(position, BlocksFor(position)) * layout.BlockLayerBytes() *
         layout.layers / layout.groups.count();
}

}  // namespace lynx::kv
