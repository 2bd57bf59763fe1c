#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/kv/block_table.h"
#include "common/kv/kv_arena.h"
#include "common/kv/swapped_kv.h"
#include "common/node/rank_channel.h"

namespace lynx::decode {

// A copy of what a preempted sequence holds, of which each rank of the node keeps its part, in
// memory of its own. Made, restored and dropped on the loop, while no step runs.
class NodeKvCopy {
 public:
  // As kv::SwappedKv, of what the ranks of `replica` hold. `ranks`: the others; null: there are
  // none. Both outlive it. Fails as kv::SwappedKv.
  static absl::StatusOr<std::unique_ptr<NodeKvCopy>> Make(kv::KvArena& kv, node::RankChannel* ranks,
                                                          int32_t replica,
                                                          const kv::BlockTable& table,
                                                          int32_t position);
  ~NodeKvCopy();
  NodeKvCopy(const NodeKvCopy&) = delete;
  NodeKvCopy& operator=(const NodeKvCopy&) = delete;

  absl::Status Restore(const kv::BlockTable& table, int32_t first_block) const;
  int32_t position() const { return position_; }
  int64_t bytes() const;  // Of each rank of the replica.

 private:
  NodeKvCopy(kv::KvArena& kv, node::RankChannel* ranks, int32_t replica, int32_t position,
             std::optional<kv::SwappedKv> own);
  void Tell(proto::RankMessage message) const;

  kv::KvArena& kv_;
  node::RankChannel* const ranks_;
  const int32_t replica_;
  const int32_t position_;
  const uint64_t id_;
  const std::optional<kv::SwappedKv> own_;  // Of replica 0.
};

}  // namespace lynx::decode
