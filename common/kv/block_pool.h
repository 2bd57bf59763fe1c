#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/mutex.h"
#include "common/kv/kv_groups.h"
#include "common/kv/kv_layout.h"

namespace lynx::kv {

// Names one block of a KvArena. Meaningful only with the pool that issued it.
using BlockId = int32_t;
inline constexpr BlockId kNoBlock = -1;

class BlockPool;

// Exclusive right to some blocks of a BlockPool, handed back when the lease dies. What a sequence
// holds, and gives back in parts, is a BlockTable.
//
// A lease is what keeps memory safe from late writes: whoever may still write into a block holds
// the lease, so the pool cannot give the block to anyone else.
//
// Move-only. Not thread-safe; distinct leases may be used from distinct threads.
class [[nodiscard]] BlockLease {
 public:
  BlockLease() = default;  // Holds nothing.
  BlockLease(BlockLease&& other) noexcept;
  BlockLease& operator=(BlockLease&& other) noexcept;
  ~BlockLease() { Reset(); }

  // Valid until the lease is changed, moved from or destroyed.
  std::span<const BlockId> blocks() const { return blocks_; }
  // Gives the blocks back now.
  void Reset();

 private:
  friend class BlockPool;
  BlockLease(BlockPool* pool, std::vector<BlockId> blocks);

  BlockPool* pool_ = nullptr;  // Not owned; null exactly when blocks_ is empty.
  std::vector<BlockId> blocks_;
};

// Hands out the fixed set of KV blocks of one arena. Bookkeeping only: neither allocates nor
// touches the memory.
//
// A PrefixCache may keep blocks after their holders are gone, and share them with new ones. A kept
// block that nobody holds counts as free: it is reclaimed when it is needed.
//
// Invariant: free_blocks() + (blocks that somebody holds) == capacity_blocks(). Without a cache no
// block has two holders.
//
// Thread-safe, but for Acquire and the cache's calls, which are one thread's where there is a
// cache. No call blocks on anything but a short critical section; a caller that wants to wait for
// space queues the request itself.
class BlockPool {
 public:
  // Who keeps blocks.
  class Reclaimer {
   public:
    virtual ~Reclaimer() = default;
    // Drops at least `blocks` kept blocks that nobody holds, or all there are. Called by Acquire.
    virtual void Reclaim(int64_t blocks) = 0;
  };

  // > 0 blocks; `groups`: of the layers whose KV they hold.
  explicit BlockPool(int32_t capacity_blocks, KvGroups groups = {});

  // All leases must be gone: a live lease here is a use-after-free in the making, so this aborts.
  ~BlockPool();
  BlockPool(const BlockPool&) = delete;
  BlockPool& operator=(const BlockPool&) = delete;

  // Leases `blocks` blocks, all or nothing.
  //   InvalidArgument    blocks < 0 (0 gives an empty lease).
  //   OutOfRange         more than the pool has: it can never fit; retrying is pointless.
  //   ResourceExhausted  not enough free blocks now; retry after a lease dies.
  // The lease must not outlive the pool. O(blocks).
  absl::StatusOr<BlockLease> Acquire(int64_t blocks) LYNX_EXCLUDES(mu_);

  // A snapshot: already stale when another thread acquires or releases.
  int32_t free_blocks() const LYNX_EXCLUDES(mu_);
  // Of the free ones, those that a cache keeps. A snapshot, too.
  int32_t cached_blocks() const LYNX_EXCLUDES(mu_);
  int32_t capacity_blocks() const { return capacity_blocks_; }
  const KvGroups& groups() const { return groups_; }

 private:
  friend class BlockLease;
  friend class BlockTable;
  friend class PrefixCache;
  absl::StatusOr<std::vector<BlockId>> Take(int64_t blocks) LYNX_EXCLUDES(mu_);
  std::vector<BlockId> TakeFree(int64_t blocks) LYNX_REQUIRES(mu_);
  void Release(std::span<const BlockId> blocks) LYNX_EXCLUDES(mu_);

  // kNoBlock is skipped in all of these.
  // One more holder of each: of held or kept blocks.
  void Share(std::span<const BlockId> blocks) LYNX_EXCLUDES(mu_);
  // Whether others hold it or it is kept: it must not be written any more.
  bool Shared(BlockId block) const LYNX_EXCLUDES(mu_);
  void SetReclaimer(Reclaimer* reclaimer) { reclaimer_ = reclaimer; }
  void Keep(BlockId block) LYNX_EXCLUDES(mu_);  // Of a held block, once.
  void Drop(std::span<const BlockId> blocks) LYNX_EXCLUDES(mu_);
  // Kept ones that nobody holds.
  int64_t IdleAmong(std::span<const BlockId> blocks) const LYNX_EXCLUDES(mu_);

  const int32_t capacity_blocks_;
  const KvGroups groups_;
  mutable Mutex mu_;
  // Used as a stack, so the most recently freed blocks (warmest in cache and TLB) go out first.
  std::vector<BlockId> free_ LYNX_GUARDED_BY(mu_);
  struct Use {
    int32_t holders = 0;
    bool kept = false;
  };
  std::vector<Use> uses_ LYNX_GUARDED_BY(mu_);  // By block.
  int32_t idle_ LYNX_GUARDED_BY(mu_) = 0;       // Kept, and held by nobody.
  Reclaimer* reclaimer_ = nullptr;              // Not owned.
};

}  // namespace lynx::kv
