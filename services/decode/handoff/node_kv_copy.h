#pragma once

#include <cstdint>

#include "common/kv/block_table.h"
#include "common/kv/kv_arena.h"
#include "common/kv/swapped_kv.h"
#include "common/node/rank_channel.h"

namespace lynx::decode {

// A copy of what a preempted sequence holds, of which each rank of the node keeps its part, in
// memory of its own. Made, restored and dropped on the loop, while no step runs.
class NodeKvCopy {
 public:
  // As kv::SwappedKv. `ranks`: the others; null: there are none. Both outlive it.
  NodeKvCopy(kv::KvArena& kv, node::RankChannel* ranks, const kv::BlockTable& table,
             int32_t position);
  ~NodeKvCopy();
  NodeKvCopy(const NodeKvCopy&) = delete;
  NodeKvCopy& operator=(const NodeKvCopy&) = delete;

  void Restore(const kv::BlockTable& table, int32_t first_block) const;
  int32_t position() const { return own_.position(); }
  int64_t bytes() const { return own_.bytes(); }  // Of this rank.

 private:
  kv::KvArena& kv_;
  node::RankChannel* const ranks_;
  const uint64_t id_;
  const kv::SwappedKv own_;
};

}  // namespace lynx::decode
