#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "common/kv/block_table.h"
#include "common/kv/kv_layout.h"
#include "common/kv/kv_shards.h"

namespace lynx::kv {

// A copy, in memory of its own, of the KV that the rows of a sequence from position() on attend to:
// what a preempted sequence needs to go on without computing it again, bit for bit.
class SwappedKv {
 public:
  // Copies from the blocks of `table`, which hold it for rows from `position` on. Nothing writes
  // them meanwhile. Costs a copy of BytesOf() bytes.
  SwappedKv(const KvShards& kv, const BlockTable& table, int32_t position);

  // Copies it into the blocks of `table` from `first_block` on, which holds what rows from
  // position() on need. Those before are left alone: they hold it already, shared with others.
  void Restore(const KvShards& kv, const BlockTable& table, int32_t first_block = 0) const;

  int32_t position() const { return position_; }
  int64_t bytes() const { return static_cast<int64_t>(bytes_.size()); }

  // Of a copy from such KV.
  static int64_t BytesOf(const KvLayout& layout, int32_t position);

 private:
  const int32_t position_;
  std::vector<std::byte> bytes_;
};

}  // namespace lynx::kv
