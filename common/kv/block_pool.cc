#include "common/kv/block_pool.h"

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
  uses_.resize(static_cast<size_t>(capacity_blocks));
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
  int64_t missing = 0;
  {
    MutexLock lock(mu_);
    if (blocks > static_cast<int64_t>(free_.size()) + idle_) {
      return absl::ResourceExhaustedError(absl::StrCat(
          blocks, " blocks asked, ", static_cast<int64_t>(free_.size()) + idle_, " free"));
    }
    missing = blocks - static_cast<int64_t>(free_.size());
    if (missing <= 0) return TakeFree(blocks);
  }
  // With a cache nobody else acquires meanwhile.
  reclaimer_->Reclaim(missing);
  MutexLock lock(mu_);
  return TakeFree(blocks);
}

std::vector<BlockId> BlockPool::TakeFree(int64_t blocks) {
  LYNX_CHECK(blocks <= static_cast<int64_t>(free_.size()));
  std::vector<BlockId> taken(free_.rbegin(), free_.rbegin() + blocks);
  free_.resize(free_.size() - static_cast<size_t>(blocks));
  for (const BlockId block : taken) uses_[static_cast<size_t>(block)].holders = 1;
  return taken;
}

int32_t BlockPool::free_blocks() const {
  MutexLock lock(mu_);
  return static_cast<int32_t>(free_.size()) + idle_;
}

int32_t BlockPool::cached_blocks() const {
  MutexLock lock(mu_);
  return idle_;
}

void BlockPool::Release(std::span<const BlockId> blocks) {
  MutexLock lock(mu_);
  for (auto block = blocks.rbegin(); block != blocks.rend(); ++block) {
    if (*block == kNoBlock) continue;
    Use& use = uses_[static_cast<size_t>(*block)];
    LYNX_CHECK(use.holders > 0);
    if (--use.holders > 0) continue;
    if (use.kept) {
      ++idle_;
    } else {
      free_.push_back(*block);
    }
  }
}

void BlockPool::Share(std::span<const BlockId> blocks) {
  MutexLock lock(mu_);
  for (const BlockId block : blocks) {
    if (block == kNoBlock) continue;
    Use& use = uses_[static_cast<size_t>(block)];
    LYNX_CHECK(use.holders > 0 || use.kept);
    if (use.holders++ == 0) --idle_;
  }
}

bool BlockPool::Shared(BlockId block) const {
  MutexLock lock(mu_);
  const Use& use = uses_[static_cast<size_t>(block)];
  return use.kept || use.holders > 1;
}

void BlockPool::Keep(BlockId block) {
  MutexLock lock(mu_);
  Use& use = uses_[static_cast<size_t>(block)];
  LYNX_CHECK(use.holders > 0 && !use.kept);
  use.kept = true;
}

void BlockPool::Drop(std::span<const BlockId> blocks) {
  MutexLock lock(mu_);
  for (const BlockId block : blocks) {
    if (block == kNoBlock) continue;
    Use& use = uses_[static_cast<size_t>(block)];
    LYNX_CHECK(use.kept);
    use.kept = false;
    if (use.holders > 0) continue;
    --idle_;
    free_.push_back(block);
  }
}

int64_t BlockPool::IdleAmong(std::span<const BlockId> blocks) const {
  MutexLock lock(mu_);
  int64_t idle = 0;
  for (const BlockId block : blocks) {
    if (block == kNoBlock) continue;
    const Use& use = uses_[static_cast<size_t>(block)];
    idle += use.kept && use.holders == 0 ? 1 : 0;
  }
  return idle;
}

}  // namespace lynx::kv
