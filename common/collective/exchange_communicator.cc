#include "common/collective/exchange_communicator.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/status_macros.h"

namespace lynx::collective {
namespace {

// Up to so many bytes from each rank to each other, a second exchange costs more than the bytes
// that it saves.
constexpr size_t kSmallBytes = size_t{32} << 10;

absl::Status Misfit(const std::string& what) {
  return absl::InvalidArgumentError(absl::StrCat("collective: ", what));
}

}  // namespace

// Some ranks of a group, by way of which they exchange.
class ExchangeCommunicator::Members final : public ExchangeCommunicator {
 public:
  Members(ExchangeCommunicator& group, int rank, std::vector<int> members)
      : ExchangeCommunicator(rank, static_cast<int>(members.size())),
        group_(group),
        members_(std::move(members)),
        to_(static_cast<size_t>(group.size())),
        from_(to_.size()) {}

 private:
  absl::Status Exchange(std::span<const std::byte> out, std::span<const Part> to,
                        std::span<std::byte> in, std::span<const Part> from) override {
    LYNX_RETURN_IF_ERROR(group_.failure());
    for (size_t i = 0; i < members_.size(); ++i) {
      const auto member = static_cast<size_t>(members_[i]);
      to_[member] = to[i];
      from_[member] = from[i];
    }
    group_.CountSent(to_);
    absl::Status status = group_.ExchangeAmong(members_, out, to_, in, from_);
    if (status.ok()) return status;
    group_.Abort(std::move(status));
    return group_.failure();
  }
  void Interrupt() override { group_.Abort(failure()); }

  ExchangeCommunicator& group_;
  const std::vector<int> members_;
  // By rank of the group; what is not of members stays empty.
  std::vector<Part> to_;
  std::vector<Part> from_;
};

std::vector<ExchangeCommunicator::Part> ExchangeCommunicator::InTurn(size_t bytes, size_t count) {
  std::vector<Part> parts(count);
  for (size_t i = 0; i < count; ++i) parts[i] = {i * bytes, bytes};
  return parts;
}

ExchangeCommunicator::ExchangeCommunicator(int rank, int size) : rank_(rank), size_(size) {
  LYNX_CHECK(size > 0 && rank >= 0 && rank < size);
}

absl::Status ExchangeCommunicator::Run(std::span<const std::byte> out, std::span<const Part> to,
                                       std::span<std::byte> in, std::span<const Part> from) {
  LYNX_RETURN_IF_ERROR(failure());
  const Part& mine = to[static_cast<size_t>(rank_)];
  std::byte* const copy = in.data() + from[static_cast<size_t>(rank_)].offset;
  if (mine.bytes > 0 && copy != out.data() + mine.offset) {
    std::memcpy(copy, out.data() + mine.offset, mine.bytes);
  }
  if (size_ == 1) return absl::OkStatus();
  CountSent(to);
  absl::Status status = Exchange(out, to, in, from);
  if (status.ok()) return status;
  Abort(std::move(status));
  return failure();
}

void ExchangeCommunicator::CountSent(std::span<const Part> to) {
  int64_t bytes = 0;
  for (size_t r = 0; r < to.size(); ++r) {
    if (static_cast<int>(r) != rank_) bytes += static_cast<int64_t>(to[r].bytes);
  }
  sent_bytes_.fetch_add(bytes, std::memory_order_relaxed);
}

absl::Status ExchangeCommunicator::failure() const {
  MutexLock lock(mu_);
  return failure_;
}

absl::Status ExchangeCommunicator::ExchangeAmong(std::span<const int> /*members*/,
                                                 std::span<const std::byte> out,
                                                 std::span<const Part> to, std::span<std::byte> in,
                                                 std::span<const Part> from) {
  return Exchange(out, to, in, from);
}

std::unique_ptr<Communicator> ExchangeCommunicator::Subgroup(std::vector<int> members) {
  const auto self = std::ranges::find(members, rank_);
  LYNX_CHECK(self != members.end() && std::ranges::is_sorted(members) && members.front() >= 0 &&
             members.back() < size_);
  const auto place = static_cast<int>(self - members.begin());
  return std::make_unique<Members>(*this, place, std::move(members));
}

void ExchangeCommunicator::Abort(absl::Status why) {
  LYNX_CHECK(!why.ok());
  {
    MutexLock lock(mu_);
    if (!failure_.ok()) return;
    failure_ = std::move(why);
  }
  Interrupt();
}

template <typename T>
absl::Status ExchangeCommunicator::SumParts(std::span<const T> values, std::span<const Part> to,
                                            std::span<T> mine, std::vector<T>& scratch) {
  const auto ranks = static_cast<size_t>(size_);
  scratch.resize(ranks * mine.size());
  LYNX_RETURN_IF_ERROR(Run(std::as_bytes(values), to, std::as_writable_bytes(std::span(scratch)),
                           InTurn(mine.size_bytes(), ranks)));
  std::copy_n(scratch.begin(), mine.size(), mine.begin());
  for (size_t r = 1; r < ranks; ++r) {
    const T* const summand = scratch.data() + r * mine.size();
    for (size_t i = 0; i < mine.size(); ++i) mine[i] += summand[i];
  }
  return absl::OkStatus();
}

template <typename T>
absl::Status ExchangeCommunicator::Sum(std::span<T> values, std::vector<T>& scratch) {
  const auto ranks = static_cast<size_t>(size_);
  if (values.size_bytes() <= kSmallBytes) {
    // Everybody adds everything up.
    return SumParts<T>(values, std::vector<Part>(ranks, Part{0, values.size_bytes()}), values,
                       scratch);
  }
  const size_t each = (values.size() + ranks - 1) / ranks;
  std::vector<Part> parts;
  for (size_t begin = 0; parts.size() < ranks; begin = std::min(values.size(), begin + each)) {
    const size_t end = std::min(values.size(), begin + each);
    parts.push_back({begin * sizeof(T), (end - begin) * sizeof(T)});
  }
  const Part own = parts[static_cast<size_t>(rank_)];
  LYNX_RETURN_IF_ERROR(SumParts<T>(
      values, parts, values.subspan(own.offset / sizeof(T), own.bytes / sizeof(T)), scratch));
  return Run(std::as_bytes(values), std::vector<Part>(ranks, own), std::as_writable_bytes(values),
             parts);
}

template absl::Status ExchangeCommunicator::Sum(std::span<float>, std::vector<float>&);
template absl::Status ExchangeCommunicator::Sum(std::span<double>, std::vector<double>&);

absl::Status ExchangeCommunicator::ReduceScatterSum(std::span<const float> values,
                                                    std::span<float> mine) {
  if (values.size() != mine.size() * static_cast<size_t>(size_)) {
    return Misfit(
        absl::StrCat(values.size(), " values to scatter over ", size_, " parts of ", mine.size()));
  }
  return SumParts<float>(values, InTurn(mine.size_bytes(), static_cast<size_t>(size_)), mine,
                         scratch_);
}

absl::Status ExchangeCommunicator::AllGather(std::span<const std::byte> mine,
                                             std::span<std::byte> all) {
  const auto ranks = static_cast<size_t>(size_);
  if (all.size() != mine.size() * ranks) {
    return Misfit(
        absl::StrCat(all.size(), " bytes to gather ", size_, " parts of ", mine.size(), " into"));
  }
  return Run(mine, std::vector<Part>(ranks, Part{0, mine.size()}), all, InTurn(mine.size(), ranks));
}

absl::Status ExchangeCommunicator::AllToAll(std::span<const std::byte> send,
                                            std::span<const int64_t> send_bytes,
                                            std::span<std::byte> received,
                                            std::span<const int64_t> received_bytes) {
  // The parts of `memory`; empty when they do not fill it.
  const auto split = [&](size_t memory, std::span<const int64_t> bytes) {
    std::vector<Part> parts;
    if (bytes.size() != static_cast<size_t>(size_)) return parts;
    size_t offset = 0;
    for (const int64_t n : bytes) {
      if (n < 0 || static_cast<size_t>(n) > memory - offset) return std::vector<Part>();
      parts.push_back({offset, static_cast<size_t>(n)});
      offset += static_cast<size_t>(n);
    }
    return offset == memory ? parts : std::vector<Part>();
  };
  const std::vector<Part> to = split(send.size(), send_bytes);
  const std::vector<Part> from = split(received.size(), received_bytes);
  if (to.empty() || from.empty()) {
    return Misfit(absl::StrCat("parts that do not fill the ",
                               to.empty() ? send.size() : received.size(), " bytes to ",
                               to.empty() ? "send" : "receive"));
  }
  const auto self = static_cast<size_t>(rank_);
  if (to[self].bytes != from[self].bytes) {
    return Misfit(absl::StrCat("rank ", rank_, " sends itself ", to[self].bytes,
                               " bytes and awaits ", from[self].bytes));
  }
  return Run(send, to, received, from);
}

absl::Status ExchangeCommunicator::Broadcast(std::span<std::byte> data, int root) {
  if (root < 0 || root >= size_) return Misfit(absl::StrCat("root ", root, " of ", size_));
  std::vector<Part> to(static_cast<size_t>(size_));
  std::vector<Part> from(static_cast<size_t>(size_));
  if (rank_ == root) std::fill(to.begin(), to.end(), Part{0, data.size()});
  from[static_cast<size_t>(root)] = {0, data.size()};
  return Run(data, to, data, from);
}

absl::Status ExchangeCommunicator::Barrier() {
  const std::byte token{};
  std::vector<std::byte> tokens(static_cast<size_t>(size_));
  return AllGather(std::span(&token, 1), tokens);
}

}  // namespace lynx::collective
