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
// Invariant: free_blocks() + (blocks in live leases) == capacity_blocks(), and no block is in two
// leases.
//
// Thread-safe. No call blocks on anything but a short critical section; a caller that wants to wait
// for space queues the request itself.
class BlockPool {
 public:
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
  int32_t capacity_blocks() const { return capacity_blocks_; }
  const KvGroups& groups() const { return groups_; }

 private:
  friend class BlockLease;
  friend class BlockTable;
  absl::StatusOr<std::vector<BlockId>> Take(int64_t blocks) LYNX_EXCLUDES(mu_);
  void Release(std::span<const BlockId> blocks) LYNX_EXCLUDES(mu_);

  const int32_t capacity_blocks_;
  const KvGroups groups_;
  mutable Mutex mu_;
  // Used as a stack, so the most recently freed blocks (warmest in cache and TLB) go out first.
  std::vector<BlockId> free_ LYNX_GUARDED_BY(mu_);
};

}  // namespace lynx::kv
