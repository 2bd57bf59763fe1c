#include "common/kv/swapped_kv.h"

#include "common/base/check.h"
#include "common/base/status_macros.h"

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

absl::StatusOr<SwappedKv> SwappedKv::Copy(KvArena& kv, std::span<const BlockId> blocks,
                                          int32_t position) {
  std::vector<KvArena::Part> parts;
  ForEachPart(kv.layout(), blocks, position, [&](int32_t layer, BlockId block, int64_t) {
    parts.push_back(kv.WholeBlock(layer, block));
  });
  SwappedKv copy(position);
  copy.bytes_.resize(static_cast<size_t>(BytesOf(kv.layout(), position)));
  LYNX_RETURN_IF_ERROR(kv.Read(parts, copy.bytes_.data()));
  return copy;
}

absl::Status SwappedKv::Restore(KvArena& kv, std::span<const BlockId> blocks,
                                int32_t first_block) const {
  // Of each layer, blocks from first_block on follow one another.
  std::vector<KvArena::Part> parts;
  const std::byte* at = bytes_.data();
  const std::byte* from = at;
  absl::Status status;
  const auto write = [&] {
    if (status.ok() && !parts.empty()) status = kv.Write(from, parts);
    parts.clear();
  };
  ForEachPart(kv.layout(), blocks, position_, [&](int32_t layer, BlockId block, int64_t index) {
    const KvArena::Part part = kv.WholeBlock(layer, block);
    if (index < first_block) {
      write();
    } else {
      if (parts.empty()) from = at;
      parts.push_back(part);
    }
    at += part.bytes;
  });
  write();
  LYNX_CHECK(at == bytes_.data() + bytes_.size());
  return status;
}

int64_t SwappedKv::BytesOf(const KvLayout& layout, int32_t position) {
  // A block is of the layers of one group; all groups have equally many.
  return layout.groups.BlocksHeld(position, BlocksFor(position)) * layout.BlockLayerBytes() *
         layout.layers / layout.groups.count();
}

}  // namespace lynx::kv
