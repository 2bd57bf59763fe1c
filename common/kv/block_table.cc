#include "common/kv/block_table.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/status_macros.h"

namespace lynx::kv {

BlockTable::BlockTable(BlockTable&& other) noexcept { *this = std::move(other); }

BlockTable& BlockTable::operator=(BlockTable&& other) noexcept {
  if (this != &other) {
    Reset();
    pool_ = std::exchange(other.pool_, nullptr);
    table_ = std::exchange(other.table_, {});
    length_ = std::exchange(other.length_, 0);
    end_block_ = std::exchange(other.end_block_, 0);
    position_ = std::exchange(other.position_, 0);
    held_ = std::exchange(other.held_, 0);
    shared_in_windows_ = std::exchange(other.shared_in_windows_, 0);
    spare_ = std::exchange(other.spare_, {});
  }
  return *this;
}

absl::StatusOr<BlockTable> BlockTable::Acquire(BlockPool& pool, int32_t position, int64_t tokens) {
  BlockTable table;
  table.position_ = position;
  LYNX_RETURN_IF_ERROR(table.Extend(pool, tokens));
  return table;
}

BlockTable BlockTable::Shared(BlockPool& pool, std::vector<BlockId> blocks) {
  BlockTable table;
  table.Join(pool);
  pool.Share(blocks);
  table.length_ = blocks.size() / static_cast<size_t>(pool.groups().count());
  table.end_block_ = static_cast<int32_t>(table.length_);
  table.position_ = table.end_block_ * kBlockTokens;
  for (size_t i = 0; i < blocks.size(); ++i) {
    if (blocks[i] == kNoBlock) continue;
    ++table.held_;
    const auto group = static_cast<int32_t>(i / table.length_);
    if (pool.groups().reach(group).bounded()) ++table.shared_in_windows_;
  }
  table.table_ = std::move(blocks);
  return table;
}

std::span<const BlockId> BlockTable::group(int32_t group) const {
  return std::span(table_).subspan(static_cast<size_t>(group) * length_,
                                   static_cast<size_t>(end_block_));
}

void BlockTable::Join(BlockPool& pool) {
  LYNX_CHECK(pool_ == nullptr || pool_ == &pool);
  pool_ = &pool;
}

absl::Status BlockTable::Reserve(BlockPool& pool, int64_t blocks) {
  if (blocks > pool.capacity_blocks()) {
    return absl::OutOfRangeError(
        absl::StrCat("sequence needs ", blocks, " blocks, the pool has ", pool.capacity_blocks()));
  }
  const int64_t missing = blocks - held_blocks();
  if (missing <= 0) return absl::OkStatus();
  LYNX_ASSIGN_OR_RETURN(const std::vector<BlockId> taken, pool.Take(missing));
  Join(pool);
  spare_.insert(spare_.end(), taken.rbegin(), taken.rend());
  return absl::OkStatus();
}

absl::Status BlockTable::Extend(BlockPool& pool, int64_t tokens) {
  const KvGroups& groups = pool.groups();
  const int64_t end = BlocksFor(tokens);
  if (end <= end_block_) return absl::OkStatus();
  LYNX_RETURN_IF_ERROR(Reserve(pool, groups.BlocksHeld(position_, end)));
  Join(pool);
  if (end > static_cast<int64_t>(length_)) {
    const size_t length =
        groups.count() == 1 ? static_cast<size_t>(end) : std::bit_ceil(static_cast<size_t>(end));
    if (groups.count() == 1) {
      table_.resize(length, kNoBlock);
    } else {
      std::vector<BlockId> longer(static_cast<size_t>(groups.count()) * length, kNoBlock);
      for (size_t g = 0; end_block_ > 0 && g < static_cast<size_t>(groups.count()); ++g) {
        std::copy_n(table_.data() + g * length_, end_block_, longer.data() + g * length);
      }
      table_ = std::move(longer);
    }
    length_ = length;
  }
  for (int32_t g = 0; g < groups.count(); ++g) {
    BlockId* const table = table_.data() + static_cast<size_t>(g) * length_;
    for (int64_t i = std::max(end_block_, groups.FirstBlock(g, position_)); i < end; ++i) {
      table[i] = spare_.back();
      spare_.pop_back();
      ++held_;
    }
  }
  end_block_ = static_cast<int32_t>(end);
  return absl::OkStatus();
}

void BlockTable::ReleaseBefore(int32_t position) {
  LYNX_CHECK(position >= position_);
  if (pool_ != nullptr) {
    const KvGroups& groups = pool_->groups();
    for (int32_t g = 0; g < groups.count(); ++g) {
      BlockId* const table = table_.data() + static_cast<size_t>(g) * length_;
      const int32_t past = std::min(end_block_, groups.FirstBlock(g, position));
      for (int32_t i = groups.FirstBlock(g, position_); i < past; ++i) {
        const BlockId block = std::exchange(table[i], kNoBlock);
        --held_;
        if (pool_->Shared(block)) {
          pool_->Release({&block, 1});
        } else {
          spare_.push_back(block);
        }
      }
    }
  }
  position_ = position;
}

void BlockTable::ReleaseSpare() {
  if (spare_.empty()) return;
  pool_->Release(spare_);
  spare_.clear();
}

void BlockTable::Reset() {
  if (pool_ != nullptr) {
    std::erase(table_, kNoBlock);
    ReleaseSpare();
    pool_->Release(table_);
    pool_ = nullptr;
  }
  table_.clear();
  length_ = 0;
  end_block_ = 0;
  position_ = 0;
  held_ = 0;
  shared_in_windows_ = 0;
}

}  // namespace lynx::kv
