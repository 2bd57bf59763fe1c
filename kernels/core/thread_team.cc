#include "kernels/core/thread_team.h"

#include <pthread.h>
#include <sched.h>

#include <chrono>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/status_macros.h"

namespace lynx::kernels {
namespace {

// A waiter gives its core away after this many pauses, about a microsecond: on a machine with more
// to do than cores, the thread it waits for may need it.
constexpr int kPausesBeforeYield = 32;
// Longer than the serial stretches inside a step and between two steps of a busy engine, shorter
// than anybody notices.
constexpr std::chrono::microseconds kSpinBeforeSleep{100};

inline void Pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

constexpr uint64_t Packed(uint64_t begin, uint64_t end) { return begin << 32 | end; }
constexpr uint64_t BeginOf(uint64_t items) { return items >> 32; }
constexpr uint64_t EndOf(uint64_t items) { return items & 0xffffffffu; }

thread_local int32_t pinned_to = -1;

void PinThisThread(int32_t cpu) {
  if (pinned_to == cpu) return;
  pinned_to = cpu;
  if (cpu < 0 || cpu >= CPU_SETSIZE) return;
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(cpu, &set);
  pthread_setaffinity_np(pthread_self(), sizeof(set), &set);
}

}  // namespace

ThreadTeam::ThreadTeam(int32_t threads, std::vector<int32_t> cpus) : ThreadTeam(std::move(cpus)) {
  const absl::Status status = Start(threads);
  LYNX_CHECK_MSG(status.ok(), status.ToString());
}

absl::StatusOr<std::unique_ptr<ThreadTeam>> ThreadTeam::Create(int32_t threads,
                                                               std::vector<int32_t> cpus) {
  std::unique_ptr<ThreadTeam> team(new ThreadTeam(std::move(cpus)));
  LYNX_RETURN_IF_ERROR(team->Start(threads));
  return team;
}

absl::Status ThreadTeam::Start(int32_t threads) {
  LYNX_CHECK(threads >= 1);
  ranges_ = std::make_unique<Range[]>(static_cast<size_t>(threads));
  workers_.reserve(static_cast<size_t>(threads - 1));
  try {
    for (int32_t i = 1; i < threads; ++i) workers_.emplace_back([this, i] { WorkerLoop(i); });
  } catch (const std::system_error& error) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "of ", threads, " compute threads the system gives ", this->threads(), ": ",
        error.code().message(), " (a limit of processes and threads, or of address space)"));
  }
  return absl::OkStatus();
}

ThreadTeam::~ThreadTeam() {
  stop_.store(true, std::memory_order_relaxed);
  generation_.fetch_add(1, std::memory_order_release);
  generation_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void ThreadTeam::Run(int64_t items, Body body, const void* context) {
  LYNX_CHECK(items >= 0 && items <= kMaxItems);
  if (!cpus_.empty()) PinThisThread(cpus_[0]);
  if (items <= 1 || workers_.empty()) {
    for (int64_t i = 0; i < items; ++i) body(context, i);
    return;
  }
  body_ = body;
  context_ = context;
  done_.store(0, std::memory_order_relaxed);
  const auto count = static_cast<uint64_t>(items);
  const auto team = static_cast<uint64_t>(threads());
  // Rounded up, so that of few items the caller, who is awake, has the first.
  auto first = [&](uint64_t thread) { return (count * thread + team - 1) / team; };
  for (uint64_t t = 0; t < team; ++t) {
    ranges_[t].items.store(Packed(first(t), first(t + 1)), std::memory_order_release);
  }
  generation_.fetch_add(1, std::memory_order_release);
  generation_.notify_all();
  Work(0);
  int pauses = 0;
  while (done_.load(std::memory_order_acquire) != items) {
    if (++pauses % kPausesBeforeYield == 0) {
      sched_yield();
    } else {
      Pause();
    }
  }
}

void ThreadTeam::Work(int32_t thread) {
  // A claim that succeeds saw the job's own store of the range, so the job is open, and its body
  // visible, until that item is counted as done.
  int64_t ran = 0;
  auto run = [&](uint64_t item) {
    body_(context_, static_cast<int64_t>(item));
    ++ran;
  };
  auto count_done = [&] {
    if (ran > 0) done_.fetch_add(std::exchange(ran, 0), std::memory_order_release);
  };

  std::atomic<uint64_t>& own = ranges_[static_cast<size_t>(thread)].items;
  uint64_t items = own.load(std::memory_order_acquire);
  while (BeginOf(items) < EndOf(items)) {
    if (own.compare_exchange_weak(items, Packed(BeginOf(items) + 1, EndOf(items)),
                                  std::memory_order_acq_rel, std::memory_order_acquire)) {
      run(BeginOf(items));
      items = own.load(std::memory_order_acquire);
    }
  }
  for (int32_t i = 1; i < threads(); ++i) {
    std::atomic<uint64_t>& other = ranges_[static_cast<size_t>((thread + i) % threads())].items;
    items = other.load(std::memory_order_acquire);
    while (BeginOf(items) < EndOf(items)) {
      if (other.compare_exchange_weak(items, Packed(BeginOf(items), EndOf(items) - 1),
                                      std::memory_order_acq_rel, std::memory_order_acquire)) {
        run(EndOf(items) - 1);
        items = other.load(std::memory_order_acquire);
      }
    }
  }
  count_done();
}

void ThreadTeam::WorkerLoop(int32_t thread) {
  if (!cpus_.empty()) PinThisThread(cpus_[static_cast<size_t>(thread) % cpus_.size()]);
  uint32_t seen = 0;
  while (true) {
    uint32_t now;
    int pauses = 0;
    std::chrono::steady_clock::time_point since;
    while ((now = generation_.load(std::memory_order_acquire)) == seen) {
      if (++pauses % kPausesBeforeYield != 0) {
        Pause();
        continue;
      }
      const auto time = std::chrono::steady_clock::now();
      if (pauses == kPausesBeforeYield) since = time;
      if (time - since < kSpinBeforeSleep) {
        sched_yield();
      } else {
        generation_.wait(seen, std::memory_order_acquire);
      }
    }
    seen = now;
    if (stop_.load(std::memory_order_relaxed)) return;
    Work(thread);
  }
}

}  // namespace lynx::kernels
