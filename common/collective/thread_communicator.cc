#include "common/collective/thread_communicator.h"

#include <chrono>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/check.h"

namespace lynx::collective {

// Where ranks meet. Each exchange: everybody offers its memory, copies from the others once all
// have, and leaves once all have copied, so that memory is read only while its owner waits here.
class ThreadCommunicator::Hub {
 public:
  Hub(int size, absl::Duration timeout)
      : timeout_(absl::ToChronoNanoseconds(timeout)), offers_(static_cast<size_t>(size)) {}

  size_t size() const { return offers_.size(); }

  absl::Status Exchange(size_t rank, std::span<const std::byte> out, std::span<const Part> to,
                        std::span<std::byte> in, std::span<const Part> from) LYNX_EXCLUDES(mu_) {
    const auto deadline = std::chrono::steady_clock::now() + timeout_;
    MutexLock lock(mu_);
    Offer& mine = offers_[rank];
    mine = {.out = out.data(), .to = to, .here = true};
    absl::Status met = Meet(deadline);
    // Whoever has left since may have taken its memory along.
    if (met.ok()) met = broken_;
    for (size_t r = 0; met.ok() && r < offers_.size(); ++r) {
      if (r == rank || offers_[r].to[rank].bytes == from[r].bytes) continue;
      Break(absl::InvalidArgumentError(absl::StrCat("rank ", r, " sends ",
                                                    offers_[r].to[rank].bytes, " bytes where rank ",
                                                    rank, " awaits ", from[r].bytes)));
      met = broken_;
    }
    if (!met.ok()) {
      Leave(mine);
      return met;
    }
    ++copying_;
    mu_.Unlock();
    for (size_t r = 0; r < offers_.size(); ++r) {
      if (r == rank || from[r].bytes == 0) continue;
      std::memcpy(in.data() + from[r].offset, offers_[r].out + offers_[r].to[rank].offset,
                  from[r].bytes);
    }
    mu_.Lock();
    if (--copying_ == 0) changed_.NotifyAll();
    met = Meet(deadline);
    Leave(mine);
    return met;
  }

  void Break(absl::Status why) LYNX_REQUIRES(mu_) {
    if (broken_.ok()) broken_ = std::move(why);
    changed_.NotifyAll();
  }
  void BreakNow(absl::Status why) LYNX_EXCLUDES(mu_) {
    MutexLock lock(mu_);
    Break(std::move(why));
  }

 private:
  struct Offer {
    const std::byte* out = nullptr;
    std::span<const Part> to = {};
    bool here = false;  // In an exchange.
  };

  // OK once all ranks have called it, whatever happens afterwards.
  absl::Status Meet(std::chrono::steady_clock::time_point deadline) LYNX_REQUIRES(mu_) {
    if (!broken_.ok()) return broken_;
    const uint64_t meeting = meetings_;
    if (++waiting_ == offers_.size()) {
      waiting_ = 0;
      ++meetings_;
      changed_.NotifyAll();
      return absl::OkStatus();
    }
    while (meeting == meetings_ && broken_.ok()) {
      if (changed_.WaitUntil(mu_, deadline) || meeting != meetings_ || !broken_.ok()) continue;
      std::vector<int> missing;
      for (size_t r = 0; r < offers_.size(); ++r) {
        if (!offers_[r].here) missing.push_back(static_cast<int>(r));
      }
      Break(absl::DeadlineExceededError(
          absl::StrCat("ranks that did not take part in time: ", absl::StrJoin(missing, ", "))));
    }
    return meeting != meetings_ ? absl::OkStatus() : broken_;
  }

  // Nobody may read the memory of a rank that has left.
  void Leave(Offer& mine) LYNX_REQUIRES(mu_) {
    while (copying_ > 0) changed_.Wait(mu_);
    mine.here = false;
  }

  const std::chrono::nanoseconds timeout_;
  Mutex mu_;
  CondVar changed_;
  std::vector<Offer> offers_;  // Read without the lock while all copy.
  size_t waiting_ LYNX_GUARDED_BY(mu_) = 0;
  uint64_t meetings_ LYNX_GUARDED_BY(mu_) = 0;
  int copying_ LYNX_GUARDED_BY(mu_) = 0;
  absl::Status broken_ LYNX_GUARDED_BY(mu_);
};

std::vector<std::unique_ptr<Communicator>> ThreadCommunicator::MakeGroup(int size,
                                                                         absl::Duration timeout) {
  auto hub = std::make_shared<Hub>(size, timeout);
  std::vector<std::unique_ptr<Communicator>> group;
  for (int rank = 0; rank < size; ++rank) {
    group.push_back(std::unique_ptr<Communicator>(new ThreadCommunicator(rank, hub)));
  }
  return group;
}

ThreadCommunicator::ThreadCommunicator(int rank, std::shared_ptr<Hub> hub)
    : ExchangeCommunicator(rank, static_cast<int>(hub->size())), hub_(std::move(hub)) {}

ThreadCommunicator::~ThreadCommunicator() { Interrupt(); }

absl::Status ThreadCommunicator::Exchange(std::span<const std::byte> out, std::span<const Part> to,
                                          std::span<std::byte> in, std::span<const Part> from) {
  return hub_->Exchange(static_cast<size_t>(rank()), out, to, in, from);
}

void ThreadCommunicator::Interrupt() {
  hub_->BreakNow(absl::UnavailableError(absl::StrCat("rank ", rank(), " has left the group")));
}

}  // namespace lynx::collective
