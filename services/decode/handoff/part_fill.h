#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/kv/block_pool.h"
#include "common/kv/kv_arena.h"
#include "common/proto/transfer.pb.h"
#include "common/transfer/copy_plan.h"

namespace lynx::decode {

// The part of one hand-off that this rank keeps: which blocks, and what of them has arrived. Used
// by one thread.
class PartFill {
 public:
  // blocks: [groups][end_block], the blocks that hold the prompt; `first_block`: the held prefix
  // comes before. Of each layer, what a row behind the prompt attends to is to arrive. `arena`
  // outlives it.
  PartFill(kv::KvArena& arena, std::vector<kv::BlockId> blocks, int32_t first_block,
           int32_t prompt_tokens);

  // InvalidArgument: the push is not of blocks that are to arrive.
  absl::Status Check(const transfer::CopyPlan& plan, const proto::KvPush& push,
                     size_t payload_bytes) const;
  // Verifies and stores a push that Check() has let pass, block by block. How many had been there
  // already.
  //   DataLoss  names the first damaged one; Internal  as KvArena::Write(). The push is void.
  absl::StatusOr<int> Store(const transfer::CopyPlan& plan, const proto::KvPush& push,
                            std::span<const std::byte> payload);
  // What has arrived is void.
  void Forget();

  // Blocks times heads that are to come, of all layers.
  int64_t missing() const { return missing_; }
  bool complete() const { return missing_ == 0; }
  int64_t bytes() const { return bytes_; }  // That have arrived.
  int32_t first_block() const { return first_block_; }
  int32_t end_block() const { return end_block_; }
  std::span<const kv::BlockId> blocks() const { return blocks_; }

 private:
  int32_t FirstWanted(int32_t layer) const;

  kv::KvArena& arena_;
  const std::vector<kv::BlockId> blocks_;
  const int32_t first_block_;
  const int32_t end_block_;
  const int32_t prompt_tokens_;
  int64_t wanted_ = 0;
  int64_t missing_ = 0;
  int64_t bytes_ = 0;
  std::vector<bool> verified_;  // [layer][block - first_block][head]
};

}  // namespace lynx::decode
