#include "kernels/core/thread_team.h"

#include <sched.h>

#include "common/base/check.h"

namespace lynx::kernels {
namespace {

// About 20 us: longer than the serial stretches inside a step, shorter than anybody notices.
constexpr int kSpinsBeforeSleep = 1000;
// A waiter gives its core away after this many pauses: the thread it waits for may need it.
constexpr int kSpinsBeforeYield = 200;

constexpr int kItemBits = 24;
constexpr uint64_t kItemMask = (uint64_t{1} << kItemBits) - 1;

inline void Pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

}  // namespace

ThreadTeam::ThreadTeam(int32_t threads) {
  LYNX_CHECK(threads >= 1);
  workers_.reserve(static_cast<size_t>(threads - 1));
  for (int32_t i = 1; i < threads; ++i) workers_.emplace_back([this] { WorkerLoop(); });
}

ThreadTeam::~ThreadTeam() {
  stop_.store(true, std::memory_order_relaxed);
  generation_.fetch_add(1, std::memory_order_release);
  generation_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void ThreadTeam::Run(int64_t items, Body body, const void* context) {
  LYNX_CHECK(items >= 0 && items <= kMaxItems);
  if (items <= 1 || workers_.empty()) {
    for (int64_t i = 0; i < items; ++i) body(context, i);
    return;
  }
  body_ = body;
  context_ = context;
  done_.store(0, std::memory_order_relaxed);
  ticket_.store(static_cast<uint64_t>(items), std::memory_order_release);
  generation_.fetch_add(1, std::memory_order_release);
  generation_.notify_all();
  Work();
  int spins = 0;
  while (done_.load(std::memory_order_acquire) != items) {
    if (++spins % kSpinsBeforeYield == 0) {
      sched_yield();
    } else {
      Pause();
    }
  }
}

void ThreadTeam::Work() {
  uint64_t ticket = ticket_.load(std::memory_order_acquire);
  while ((ticket >> kItemBits) < (ticket & kItemMask)) {
    const uint64_t claimed = ticket + (uint64_t{1} << kItemBits);
    if (!ticket_.compare_exchange_weak(ticket, claimed, std::memory_order_acq_rel,
                                       std::memory_order_acquire)) {
      continue;
    }
    // The claim succeeded on the current ticket, so the job is open until this item is done.
    body_(context_, static_cast<int64_t>(ticket >> kItemBits));
    done_.fetch_add(1, std::memory_order_release);
    ticket = ticket_.load(std::memory_order_acquire);
  }
}

void ThreadTeam::WorkerLoop() {
  uint32_t seen = 0;
  while (true) {
    int spins = 0;
    uint32_t now;
    while ((now = generation_.load(std::memory_order_acquire)) == seen) {
      if (++spins < kSpinsBeforeSleep) {
        Pause();
      } else {
        generation_.wait(seen, std::memory_order_acquire);
      }
    }
    seen = now;
    if (stop_.load(std::memory_order_relaxed)) return;
    Work();
  }
}

}  // namespace lynx::kernels
