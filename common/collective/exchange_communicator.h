#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/base/mutex.h"
#include "common/collective/communicator.h"

namespace lynx::collective {

// A communicator made of one primitive: each rank sends a part of its memory to each other rank.
// Checks sizes, adds up in the order of ranks, and keeps the first failure.
//
// Sums of few bytes are one exchange of everything with everybody; of more, two, in which each rank
// adds up a part and sends it to the others: 2 * (size - 1) / size of the bytes cross each link.
class ExchangeCommunicator : public Communicator {
 public:
  int rank() const final { return rank_; }
  int size() const final { return size_; }
  absl::Status AllReduceSum(std::span<float> values) final { return Sum(values, scratch_); }
  absl::Status AllReduceSum(std::span<double> values) final { return Sum(values, wide_scratch_); }
  absl::Status ReduceScatterSum(std::span<const float> values, std::span<float> mine) final;
  absl::Status AllGather(std::span<const std::byte> mine, std::span<std::byte> all) final;
  absl::Status AllToAll(std::span<const std::byte> send, std::span<const int64_t> send_bytes,
                        std::span<std::byte> received,
                        std::span<const int64_t> received_bytes) final;
  absl::Status Broadcast(std::span<std::byte> data, int root) final;
  absl::Status Barrier() final;
  std::unique_ptr<Communicator> Subgroup(std::vector<int> members) final;
  void Abort(absl::Status why) final LYNX_EXCLUDES(mu_);

  // What this rank has sent others so far, calls of its subgroups among it. Any thread.
  int64_t sent_bytes() const { return sent_bytes_.load(std::memory_order_relaxed); }

 protected:
  ExchangeCommunicator(int rank, int size);

  // Of the memory that is sent or received.
  struct Part {
    size_t offset = 0;
    size_t bytes = 0;
  };
  // Sends out[to[r]] to each rank r, and fills in[from[r]] from it; what goes to the rank itself
  // has been copied already. Parts of no bytes are not sent. Returns the first failure, in the
  // words of Communicator.
  virtual absl::Status Exchange(std::span<const std::byte> out, std::span<const Part> to,
                                std::span<std::byte> in, std::span<const Part> from) = 0;
  // The same among `members` alone, ascending; to and from others go no bytes. To be overridden
  // where Exchange() waits for more ranks than it is sent bytes by.
  virtual absl::Status ExchangeAmong(std::span<const int> members, std::span<const std::byte> out,
                                     std::span<const Part> to, std::span<std::byte> in,
                                     std::span<const Part> from);

  // Makes a running Exchange return soon, and tells the other ranks as far as that goes. Called
  // once, on any thread, perhaps with no Exchange running; later ones are not begun.
  virtual void Interrupt() = 0;

  // What the group has failed with; OK while it has not.
  absl::Status failure() const LYNX_EXCLUDES(mu_);

 private:
  class Members;
  absl::Status Run(std::span<const std::byte> out, std::span<const Part> to,
                   std::span<std::byte> in, std::span<const Part> from);
  void CountSent(std::span<const Part> to);
  template <typename T>
  absl::Status Sum(std::span<T> values, std::vector<T>& scratch);
  // Sends each rank its part of `values`, and adds up in `mine` those that come, which are as long.
  template <typename T>
  absl::Status SumParts(std::span<const T> values, std::span<const Part> to, std::span<T> mine,
                        std::vector<T>& scratch);
  // Equal parts, one after the other.
  static std::vector<Part> InTurn(size_t bytes, size_t count);

  const int rank_;
  const int size_;
  std::vector<float> scratch_;  // One part of each rank.
  std::vector<double> wide_scratch_;
  std::atomic<int64_t> sent_bytes_{0};
  mutable Mutex mu_;
  absl::Status failure_ LYNX_GUARDED_BY(mu_);
};

}  // namespace lynx::collective
