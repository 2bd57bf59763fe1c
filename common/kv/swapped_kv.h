#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/kv/block_pool.h"
#include "common/kv/kv_arena.h"
#include "common/kv/kv_layout.h"

namespace lynx::kv {

// A copy, in memory of its own, of the KV that the rows of a sequence from position() on attend to:
// what a preempted sequence needs to go on without computing it again, bit for bit.
class SwappedKv {
 public:
  // Copies from `blocks`, as of BlockTable::blocks(), which hold it for rows from `position` on.
  // Nothing writes them meanwhile. Costs a copy of BytesOf() bytes. Fails as KvArena::Read().
  static absl::StatusOr<SwappedKv> Copy(KvArena& kv, std::span<const BlockId> blocks,
                                        int32_t position);

  // Copies it into `blocks` from `first_block` of each table on, which hold what rows from
  // position() on need. Those before are left alone: they hold it already, shared with others.
  // Fails as KvArena::Write().
  absl::Status Restore(KvArena& kv, std::span<const BlockId> blocks, int32_t first_block = 0) const;

  int32_t position() const { return position_; }
  int64_t bytes() const { return static_cast<int64_t>(bytes_.size()); }

  // Of a copy from such KV.
  static int64_t BytesOf(const KvLayout& layout, int32_t position);

 private:
  explicit SwappedKv(int32_t position) : position_(position) {}

  int32_t position_;
  std::vector<std::byte> bytes_;
};

}  // namespace lynx::kv
