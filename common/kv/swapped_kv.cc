#include "common/kv/swapped_kv.h"

#include <span>

#include "common/base/check.h"

namespace lynx::kv {
namespace {

// Calls `visit` with each layer and block that the copy is of, and the block's index in the table,
// in a fixed order.
template <typename Visit>
void ForEachPart(const KvLayout& layout, const BlockTable& table, int32_t position, Visit visit) {
  const KvGroups& groups = layout.groups;
  const int64_t past = BlocksFor(position);
  LYNX_CHECK(past <= table.end_block());
  for (int32_t layer = 0; layer < layout.layers; ++layer) {
    const int32_t group = groups.group_of(layer);
    const auto blocks = table.group(group);
    for (int64_t i = groups.FirstBlock(group, position); i < past; ++i) {
      visit(layer, blocks[static_cast<size_t>(i)], i);
    }
  }
}

}  // namespace

SwappedKv::SwappedKv(const KvShards& kv, const BlockTable& table, int32_t position)
    : position_(position) {
  bytes_.reserve(static_cast<size_t>(BytesOf(kv.layout(), position)));
  std::vector<std::span<const std::byte>> parts;
  ForEachPart(kv.layout(), table, position, [&](int32_t layer, BlockId block, int64_t) {
    parts.clear();
    kv.Read(layer, block, parts);
    for (const auto& part : parts) bytes_.insert(bytes_.end(), part.begin(), part.end());
  });
}

void SwappedKv::Restore(const KvShards& kv, const BlockTable& table, int32_t first_block) const {
  const auto block_bytes = static_cast<size_t>(kv.layout().BlockLayerBytes());
  std::span<const std::byte> from = bytes_;
  ForEachPart(kv.layout(), table, position_, [&](int32_t layer, BlockId block, int64_t index) {
    if (index >= first_block) kv.Write(layer, block, 0, from.first(block_bytes));
    from = from.subspan(block_bytes);
  });
  LYNX_CHECK(from.empty());
}

int64_t SwappedKv::BytesOf(const KvLayout& layout, int32_t position) {
  // A block is of the layers of one group; all groups have equally many.
  return layout.groups.BlocksHeld(position, BlocksFor(position)) * layout.BlockLayerBytes() *
         layout.layers / layout.groups.count();
}

}  // namespace lynx::kv
