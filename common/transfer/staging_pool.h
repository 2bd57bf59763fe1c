#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "common/transfer/transfer_engine.h"

namespace lynx::transfer {

// Memory in which payloads land before they are verified and copied. Keeps freed buffers for reuse,
// since fresh pages cost more than the copy into them.
//
// Thread-safe; landings may outlive the pool.
class StagingPool {
 public:
  // max_bytes: of landings alive at once. Buffers kept for reuse are within it too.
  explicit StagingPool(size_t max_bytes);
  ~StagingPool();
  StagingPool(const StagingPool&) = delete;
  StagingPool& operator=(const StagingPool&) = delete;

  // Part of the pool with a bound of its own: one a connection, and within it one a hand-off.
  class Account {
   public:
    // Null when the account, the one it is part of, or the pool is full. bytes > 0.
    std::unique_ptr<Landing> Acquire(size_t bytes);
    // Of landings alive.
    size_t used_bytes() const;
    // The owner has given up on what is still landing: from now on it counts as quarantined, until
    // the transport lets go of it.
    void Abandon();
    std::unique_ptr<Account> OpenPart() const;

    struct State;
    explicit Account(std::shared_ptr<State> state) : state_(std::move(state)) {}

   private:
    std::shared_ptr<State> state_;
  };
  std::unique_ptr<Account> Open(size_t max_bytes);

  size_t used_bytes() const;
  // Part of used_bytes() whose account was abandoned.
  size_t quarantined_bytes() const;

  struct Shared;

 private:
  std::shared_ptr<Shared> shared_;
};

}  // namespace lynx::transfer
