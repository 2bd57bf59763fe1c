#include "services/cli/bench/timed_communicator.h"

#include <chrono>
#include <numeric>

#include "common/base/status_macros.h"

namespace lynx::cli {

void CollectiveCalls::Record() {
  calls_.clear();
  recording_ = true;
}

absl::Status CollectiveCalls::Replay() {
  for (const auto& call : calls_) LYNX_RETURN_IF_ERROR(call());
  return absl::OkStatus();
}

absl::Status CollectiveCalls::Time(absl::FunctionRef<absl::Status()> call,
                                   absl::FunctionRef<std::function<absl::Status()>()> again) {
  const auto began = std::chrono::steady_clock::now();
  absl::Status status = call();
  seconds_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
  if (recording_) calls_.push_back(again());
  return status;
}

// Never written but with sums of zeros and with zeros received.
template <typename T>
std::span<T> CollectiveCalls::Zeros(std::vector<std::byte>& memory, size_t count) {
  if (memory.size() < count * sizeof(T)) memory.resize(count * sizeof(T));
  return {reinterpret_cast<T*>(memory.data()), count};
}

template <typename T>
absl::Status TimedCommunicator::Sum(std::span<T> values) {
  return calls_.Time([&] { return ranks_.AllReduceSum(values); },
                     [&]() -> std::function<absl::Status()> {
                       return [this, count = values.size()] {
                         return ranks_.AllReduceSum(CollectiveCalls::Zeros<T>(calls_.out_, count));
                       };
                     });
}

absl::Status TimedCommunicator::ReduceScatterSum(std::span<const float> values,
                                                 std::span<float> mine) {
  return calls_.Time([&] { return ranks_.ReduceScatterSum(values, mine); },
                     [&]() -> std::function<absl::Status()> {
                       return [this, count = values.size(), part = mine.size()] {
                         return ranks_.ReduceScatterSum(
                             CollectiveCalls::Zeros<float>(calls_.out_, count),
                             CollectiveCalls::Zeros<float>(calls_.in_, part));
                       };
                     });
}

absl::Status TimedCommunicator::AllGather(std::span<const std::byte> mine,
                                          std::span<std::byte> all) {
  return calls_.Time([&] { return ranks_.AllGather(mine, all); },
                     [&]() -> std::function<absl::Status()> {
                       return [this, part = mine.size(), count = all.size()] {
                         return ranks_.AllGather(
                             CollectiveCalls::Zeros<std::byte>(calls_.out_, part),
                             CollectiveCalls::Zeros<std::byte>(calls_.in_, count));
                       };
                     });
}

absl::Status TimedCommunicator::AllToAll(std::span<const std::byte> send,
                                         std::span<const int64_t> send_bytes,
                                         std::span<std::byte> received,
                                         std::span<const int64_t> received_bytes) {
  return calls_.Time(
      [&] { return ranks_.AllToAll(send, send_bytes, received, received_bytes); },
      [&]() -> std::function<absl::Status()> {
        return [this, out = send.size(), to = std::vector(send_bytes.begin(), send_bytes.end()),
                in = received.size(),
                from = std::vector(received_bytes.begin(), received_bytes.end())] {
          return ranks_.AllToAll(CollectiveCalls::Zeros<std::byte>(calls_.out_, out), to,
                                 CollectiveCalls::Zeros<std::byte>(calls_.in_, in), from);
        };
      });
}

absl::Status TimedCommunicator::Broadcast(std::span<std::byte> data, int root) {
  return calls_.Time([&] { return ranks_.Broadcast(data, root); },
                     [&]() -> std::function<absl::Status()> {
                       return [this, count = data.size(), root] {
                         return ranks_.Broadcast(
                             CollectiveCalls::Zeros<std::byte>(calls_.out_, count), root);
                       };
                     });
}

absl::Status TimedCommunicator::Barrier() {
  return calls_.Time(
      [&] { return ranks_.Barrier(); },
      [&]() -> std::function<absl::Status()> { return [this] { return ranks_.Barrier(); }; });
}

std::unique_ptr<collective::Communicator> TimedCommunicator::Subgroup(std::vector<int> members) {
  return std::unique_ptr<Communicator>(
      new TimedCommunicator(ranks_.Subgroup(std::move(members)), calls_));
}

}  // namespace lynx::cli
