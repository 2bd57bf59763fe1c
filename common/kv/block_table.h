#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/kv/block_pool.h"
#include "common/kv/kv_layout.h"

namespace lynx::kv {

// The blocks of one sequence: for each group of layers a table in token order. Entry i of a table
// stores tokens [i * kBlockTokens, (i + 1) * kBlockTokens); all tables reach equally far. Holds
// exclusive rights to its blocks, as a BlockLease does, and hands back what windows have passed.
//
// Blocks given up may be kept as spare ones for its own growth (Reserve), so that a sequence once
// admitted never waits for a block.
//
// Move-only. Not thread-safe.
class [[nodiscard]] BlockTable {
 public:
  BlockTable() = default;  // Holds nothing.
  BlockTable(BlockTable&& other) noexcept;
  BlockTable& operator=(BlockTable&& other) noexcept;
  ~BlockTable() { Reset(); }

  // Tables for `tokens` tokens that hold what rows from `position` on need. Fails as Extend.
  static absl::StatusOr<BlockTable> Acquire(BlockPool& pool, int32_t position, int64_t tokens);

  // What a PrefixCache found: `blocks` is [groups][n], kNoBlock where rows from n blocks' tokens on
  // need none. Of these the caller becomes one more holder. They are read, never written, and given
  // back without becoming spare.
  static BlockTable Shared(BlockPool& pool, std::vector<BlockId> blocks);

  // [groups][length]: the tables, one after the other, kNoBlock where nothing is held. `length` is
  // at least end_block(). Valid until the table is changed, moved from or destroyed.
  std::span<const BlockId> blocks() const { return table_; }
  // The table of one group, end_block() long.
  std::span<const BlockId> group(int32_t group) const;

  bool empty() const { return pool_ == nullptr; }
  int32_t end_block() const { return end_block_; }
  int64_t capacity_tokens() const { return int64_t{end_block_} * kBlockTokens; }
  int64_t held_blocks() const { return held_ + static_cast<int64_t>(spare_.size()); }
  // Of Shared(): blocks that windows may pass; they will not become spare.
  int64_t shared_in_windows() const { return shared_in_windows_; }

  // Raises held_blocks() to at least `blocks`, by spare ones.
  //   OutOfRange         more than the pool has: never possible.
  //   ResourceExhausted  not enough free blocks now; nothing changes.
  absl::Status Reserve(BlockPool& pool, int64_t blocks);
  // Makes the tables reach to `tokens` tokens, of spare blocks first. Fails as Reserve.
  absl::Status Extend(BlockPool& pool, int64_t tokens);
  // Gives up what rows from `position` on do not need; it becomes spare. Positions never go back.
  void ReleaseBefore(int32_t position);
  // Hands the spare blocks back.
  void ReleaseSpare();
  // Hands everything back.
  void Reset();

 private:
  void Join(BlockPool& pool);

  BlockPool* pool_ = nullptr;  // Not owned; null: nothing is held.
  std::vector<BlockId> table_;
  size_t length_ = 0;  // Of each group's table.
  int32_t end_block_ = 0;
  int32_t position_ = 0;  // Rows from here on find what they need.
  int64_t held_ = 0;      // Blocks in table_.
  int64_t shared_in_windows_ = 0;
  std::vector<BlockId> spare_;
};

}  // namespace lynx::kv
