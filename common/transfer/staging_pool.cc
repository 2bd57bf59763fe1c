#include "common/transfer/staging_pool.h"

#include <algorithm>
#include <bit>
#include <functional>
#include <map>
#include <utility>
#include <vector>

#include "common/base/check.h"
#include "common/base/mutex.h"

namespace lynx::transfer {

struct StagingPool::Shared {
  explicit Shared(size_t max) : max_bytes(max) {}

  const size_t max_bytes;
  Mutex mu;
  size_t used LYNX_GUARDED_BY(mu) = 0;
  size_t quarantined LYNX_GUARDED_BY(mu) = 0;
  size_t kept LYNX_GUARDED_BY(mu) = 0;
  // Free buffers by capacity, a power of two.
  std::map<size_t, std::vector<std::unique_ptr<std::byte[]>>> free LYNX_GUARDED_BY(mu);
};

struct StagingPool::Account::State {
  bool Fits(size_t bytes) const {
    return bytes <= max_bytes - used && (parent == nullptr || parent->Fits(bytes));
  }
  // Of this account and those it is part of. What lands for an abandoned one counts once,
  // whichever of them were abandoned, and in whatever order.
  void Add(size_t bytes) { Change(bytes, /*within=*/false, std::plus<>()); }
  void Remove(size_t bytes) { Change(bytes, /*within=*/false, std::minus<>()); }
  void Abandon() {
    if (abandoned) return;
    const size_t more = used - quarantined;
    abandoned = true;
    quarantined = used;
    for (State* outer = parent.get(); outer != nullptr; outer = outer->parent.get()) {
      if (outer->abandoned) return;  // It counts them already.
      outer->quarantined += more;
    }
    pool->quarantined += more;
  }

  const std::shared_ptr<Shared> pool;
  const std::shared_ptr<State> parent;  // Null for a connection's.
  const size_t max_bytes;
  // Guarded by pool->mu.
  size_t used = 0;
  size_t quarantined = 0;  // Of these.
  bool abandoned = false;

 private:
  template <typename Op>
  void Change(size_t bytes, bool within, Op op) {
    used = op(used, bytes);
    within = within || abandoned;
    if (within) quarantined = op(quarantined, bytes);
    if (parent != nullptr) {
      parent->Change(bytes, within, op);
    } else if (within) {
      pool->quarantined = op(pool->quarantined, bytes);
    }
  }
};

namespace {

// Smaller requests round up to this.
constexpr size_t kMinBuffer = 4096;

class Buffer final : public Landing {
 public:
  Buffer(std::shared_ptr<StagingPool::Account::State> account, std::unique_ptr<std::byte[]> memory,
         size_t capacity, size_t bytes)
      : Landing({memory.get(), bytes}),
        account_(std::move(account)),
        memory_(std::move(memory)),
        capacity_(capacity) {}

  ~Buffer() override {
    StagingPool::Shared& pool = *account_->pool;
    MutexLock lock(pool.mu);
    pool.used -= bytes().size();
    account_->Remove(bytes().size());
    if (pool.used + pool.kept + capacity_ <= pool.max_bytes) {
      pool.kept += capacity_;
      pool.free[capacity_].push_back(std::move(memory_));
    }
  }

 private:
  const std::shared_ptr<StagingPool::Account::State> account_;
  std::unique_ptr<std::byte[]> memory_;
  const size_t capacity_;
};

}  // namespace

StagingPool::StagingPool(size_t max_bytes) : shared_(std::make_shared<Shared>(max_bytes)) {}
StagingPool::~StagingPool() = default;

std::unique_ptr<StagingPool::Account> StagingPool::Open(size_t max_bytes) {
  return std::make_unique<Account>(
      std::make_shared<Account::State>(Account::State{shared_, nullptr, max_bytes}));
}

std::unique_ptr<StagingPool::Account> StagingPool::Account::OpenPart() const {
  return std::make_unique<Account>(
      std::make_shared<State>(State{state_->pool, state_, state_->max_bytes}));
}

size_t StagingPool::used_bytes() const {
  MutexLock lock(shared_->mu);
  return shared_->used;
}

size_t StagingPool::quarantined_bytes() const {
  MutexLock lock(shared_->mu);
  return shared_->quarantined;
}

std::unique_ptr<Landing> StagingPool::Account::Acquire(size_t bytes) {
  LYNX_CHECK(bytes > 0);
  Shared& pool = *state_->pool;
  size_t capacity = 0;
  std::unique_ptr<std::byte[]> memory;
  {
    MutexLock lock(pool.mu);
    if (!state_->Fits(bytes) || bytes > pool.max_bytes - pool.used) return nullptr;
    capacity = std::bit_ceil(std::max(bytes, kMinBuffer));
    pool.used += bytes;
    state_->Add(bytes);
    auto it = pool.free.find(capacity);
    if (it != pool.free.end() && !it->second.empty()) {
      memory = std::move(it->second.back());
      it->second.pop_back();
      pool.kept -= capacity;
    }
  }
  if (memory == nullptr) memory = std::make_unique_for_overwrite<std::byte[]>(capacity);
  return std::make_unique<Buffer>(state_, std::move(memory), capacity, bytes);
}

size_t StagingPool::Account::used_bytes() const {
  MutexLock lock(state_->pool->mu);
  return state_->used;
}

void StagingPool::Account::Abandon() {
  MutexLock lock(state_->pool->mu);
  state_->Abandon();
}

}  // namespace lynx::transfer
