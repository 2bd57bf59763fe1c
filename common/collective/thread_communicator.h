#pragma once

#include <memory>
#include <vector>

#include "absl/time/time.h"
#include "common/collective/exchange_communicator.h"

namespace lynx::collective {

// Ranks that are threads of one process: each copies from the others' memory. A rank whose
// communicator is destroyed is gone.
class ThreadCommunicator final : public ExchangeCommunicator {
 public:
  // One for each of `size` ranks, in order. A call fails when some rank does not join it within
  // `timeout`.
  static std::vector<std::unique_ptr<Communicator>> MakeGroup(int size, absl::Duration timeout);

  ~ThreadCommunicator() override;

 private:
  class Hub;
  ThreadCommunicator(int rank, std::shared_ptr<Hub> hub);

  absl::Status Exchange(std::span<const std::byte> out, std::span<const Part> to,
                        std::span<std::byte> in, std::span<const Part> from) override;
  absl::Status ExchangeAmong(std::span<const int> members, std::span<const std::byte> out,
                             std::span<const Part> to, std::span<std::byte> in,
                             std::span<const Part> from) override;
  void Interrupt() override;

  const std::shared_ptr<Hub> hub_;
  std::vector<int> everybody_;
};

}  // namespace lynx::collective
