#include "common/collective/thread_communicator.h"

#include <chrono>
#include <cstring>
#include <map>
#include <numeric>
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

  absl::Status Exchange(std::span<const int> members, size_t rank, std::span<const std::byte> out,
                        std::span<const Part> to, std::span<std::byte> in,
                        std::span<const Part> from) LYNX_EXCLUDES(mu_) {
    const auto deadline = std::chrono::steady_clock::now() + timeout_;
    MutexLock lock(mu_);
    Circle& circle = circles_[{members.begin(), members.end()}];
    Offer& mine = offers_[rank];
    mine = {.out = out.data(), .to = to, .here = true};
    absl::Status met = Meet(members, circle, deadline);
    // Whoever has left since may have taken its memory along.
    if (met.ok()) met = broken_;
    for (const int member : members) {
      const auto r = static_cast<size_t>(member);
      if (!met.ok()) break;
      if (r == rank || offers_[r].to[rank].bytes == from[r].bytes) continue;
      Break(absl::InvalidArgumentError(absl::StrCat("rank ", r, " sends ",
                                                    offers_[r].to[rank].bytes, " bytes where rank ",
                                                    rank, " awaits ", from[r].bytes)));
      met = broken_;
    }
    if (!met.ok()) {
      Leave(circle, mine);
      return met;
    }
    ++circle.copying;
    mu_.Unlock();
    for (const int member : members) {
      const auto r = static_cast<size_t>(member);
      if (r == rank || from[r].bytes == 0) continue;
      std::memcpy(in.data() + from[r].offset, offers_[r].out + offers_[r].to[rank].offset,
                  from[r].bytes);
    }
    mu_.Lock();
    if (--circle.copying == 0) changed_.NotifyAll();
    met = Meet(members, circle, deadline);
    Leave(circle, mine);
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
  // Ranks that exchange with each other.
  struct Circle {
    size_t waiting = 0;
    uint64_t meetings = 0;
    int copying = 0;
  };

  // OK once all members have called it, whatever happens afterwards.
  absl::Status Meet(std::span<const int> members, Circle& circle,
                    std::chrono::steady_clock::time_point deadline) LYNX_REQUIRES(mu_) {
    if (!broken_.ok()) return broken_;
    const uint64_t meeting = circle.meetings;
    if (++circle.waiting == members.size()) {
      circle.waiting = 0;
      ++circle.meetings;
      changed_.NotifyAll();
      return absl::OkStatus();
    }
    while (meeting == circle.meetings && broken_.ok()) {
      if (changed_.WaitUntil(mu_, deadline) || meeting != circle.meetings || !broken_.ok()) {
        continue;
      }
      std::vector<int> missing;
      for (const int r : members) {
        if (!offers_[static_cast<size_t>(r)].here) missing.push_back(r);
      }
      Break(absl::DeadlineExceededError(
          absl::StrCat("ranks that did not take part in time: ", absl::StrJoin(missing, ", "))));
    }
    return meeting != circle.meetings ? absl::OkStatus() : broken_;
  }

  // Nobody may read the memory of a rank that has left.
  void Leave(const Circle& circle, Offer& mine) LYNX_REQUIRES(mu_) {
    while (circle.copying > 0) changed_.Wait(mu_);
    mine.here = false;
  }

  const std::chrono::nanoseconds timeout_;
  Mutex mu_;
  CondVar changed_;
  std::vector<Offer> offers_;  // Read without the lock while all copy.
  std::map<std::vector<int>, Circle> circles_ LYNX_GUARDED_BY(mu_);  // By members.
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
    : ExchangeCommunicator(rank, static_cast<int>(hub->size())), hub_(std::move(hub)) {
  everybody_.resize(hub_->size());
  std::iota(everybody_.begin(), everybody_.end(), 0);
}

ThreadCommunicator::~ThreadCommunicator() { Interrupt(); }

absl::Status ThreadCommunicator::Exchange(std::span<const std::byte> out, std::span<const Part> to,
                                          std::span<std::byte> in, std::span<const Part> from) {
  return ExchangeAmong(everybody_, out, to, in, from);
}

absl::Status ThreadCommunicator::ExchangeAmong(std::span<const int> members,
                                               std::span<const std::byte> out,
                                               std::span<const Part> to, std::span<std::byte> in,
                                               std::span<const Part> from) {
  return hub_->Exchange(members, static_cast<size_t>(rank()), out, to, in, from);
}

void ThreadCommunicator::Interrupt() {
  hub_->BreakNow(absl::UnavailableError(absl::StrCat("rank ", rank(), " has left the group")));
}

}  // namespace lynx::collective
