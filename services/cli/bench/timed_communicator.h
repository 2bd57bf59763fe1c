#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "common/collective/communicator.h"

namespace lynx::cli {

// The calls of one rank. One thread at a time.
class CollectiveCalls {
 public:
  // Of all calls since this was last called.
  double TakeSeconds() { return std::exchange(seconds_, 0); }

  // From now on calls are kept, in place of those that are.
  void Record();
  void StopRecording() { recording_ = false; }
  // Makes those calls again, with zeros and with nothing between them, as every rank does. Their
  // communicators are still there.
  absl::Status Replay();

 private:
  friend class TimedCommunicator;
  absl::Status Time(absl::FunctionRef<absl::Status()> call,
                    absl::FunctionRef<std::function<absl::Status()>()> again);
  template <typename T>
  static std::span<T> Zeros(std::vector<std::byte>& memory, size_t count);

  double seconds_ = 0;
  bool recording_ = false;
  std::vector<std::function<absl::Status()>> calls_;
  std::vector<std::byte> out_;
  std::vector<std::byte> in_;
};

// A communicator that counts its calls, and those of its subgroups, in `calls`. Both are borrowed.
class TimedCommunicator final : public collective::Communicator {
 public:
  TimedCommunicator(Communicator& ranks, CollectiveCalls& calls) : ranks_(ranks), calls_(calls) {}

  int rank() const override { return ranks_.rank(); }
  int size() const override { return ranks_.size(); }
  absl::Status AllReduceSum(std::span<float> values) override { return Sum(values); }
  absl::Status AllReduceSum(std::span<double> values) override { return Sum(values); }
  absl::Status ReduceScatterSum(std::span<const float> values, std::span<float> mine) override;
  absl::Status AllGather(std::span<const std::byte> mine, std::span<std::byte> all) override;
  absl::Status AllToAll(std::span<const std::byte> send, std::span<const int64_t> send_bytes,
                        std::span<std::byte> received,
                        std::span<const int64_t> received_bytes) override;
  absl::Status Broadcast(std::span<std::byte> data, int root) override;
  absl::Status Barrier() override;
  std::unique_ptr<Communicator> Subgroup(std::vector<int> members) override;
  void Abort(absl::Status why) override { ranks_.Abort(std::move(why)); }

 private:
  TimedCommunicator(std::unique_ptr<Communicator> ranks, CollectiveCalls& calls)
      : subgroup_(std::move(ranks)), ranks_(*subgroup_), calls_(calls) {}
  template <typename T>
  absl::Status Sum(std::span<T> values);

  const std::unique_ptr<Communicator> subgroup_;  // Null unless this is one.
  Communicator& ranks_;
  CollectiveCalls& calls_;
};

}  // namespace lynx::cli
