#include "common/kv/block_pool.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/status_macros.h"

namespace lynx::kv {

BlockLease::BlockLease(BlockPool* pool, std::vector<BlockId> blocks)
    : pool_(blocks.empty() ? nullptr : pool), blocks_(std::move(blocks)) {}

BlockLease::BlockLease(BlockLease&& other) noexcept
    : pool_(std::exchange(other.pool_, nullptr)), blocks_(std::exchange(other.blocks_, {})) {}

BlockLease& BlockLease::operator=(BlockLease&& other) noexcept {
  if (this != &other) {
    Reset();
    pool_ = std::exchange(other.pool_, nullptr);
    blocks_ = std::exchange(other.blocks_, {});
  }
  return *this;
}

void BlockLease::Reset() {
  if (pool_ == nullptr) return;
  std::exchange(pool_, nullptr)->Release(blocks_);
  blocks_.clear();
}

BlockPool::BlockPool(int32_t capacity_blocks, KvGroups groups)
    : capacity_blocks_(capacity_blocks), groups_(std::move(groups)) {
  LYNX_CHECK(capacity_blocks > 0);
  free_.reserve(static_cast<size_t>(capacity_blocks));
  for (BlockId id = capacity_blocks - 1; id >= 0; --id) free_.push_back(id);
}

BlockPool::~BlockPool() {
  MutexLock lock(mu_);
  LYNX_CHECK_MSG(free_.size() == static_cast<size_t>(capacity_blocks_),
                 absl::StrCat(static_cast<size_t>(capacity_blocks_) - free_.size(),
                              " blocks are still in a live lease"));
}

absl::StatusOr<BlockLease> BlockPool::Acquire(int64_t blocks) {
  LYNX_ASSIGN_OR_RETURN(std::vector<BlockId> taken, Take(blocks));
  return BlockLease(this, std::move(taken));
}

absl::StatusOr<std::vector<BlockId>> BlockPool::Take(int64_t blocks) {
  if (blocks < 0) {
    return absl::InvalidArgumentError(absl::StrCat("cannot lease ", blocks, " blocks"));
  }
  if (blocks > capacity_blocks_) {
    return absl::OutOfRangeError(
        absl::StrCat(blocks, " blocks asked, the pool has ", capacity_blocks_));
  }
  MutexLock lock(mu_);
  if (blocks > static_cast<int64_t>(free_.size())) {
    return absl::ResourceExhaustedError(
        absl::StrCat(blocks, " blocks asked, ", free_.size(), " free"));
  }
  std::vector<BlockId> taken(free_.rbegin(), free_.rbegin() + blocks);
  free_.resize(free_.size() - static_cast<size_t>(blocks));
  return taken;
}

int32_t BlockPool::free_blocks() const {
  MutexLock lock(mu_);
  return static_cast<int32_t>(free_.size());
}

void BlockPool::Release(std::span<const BlockId> blocks) {
  MutexLock lock(mu_);
  free_.insert(free_.end(), blocks.rbegin(), blocks.rend());
  LYNX_CHECK(free_.size() <= static_cast<size_t>(capacity_blocks_));
}

}  // namespace lynx::kv
