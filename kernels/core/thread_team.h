#pragma once

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

namespace lynx::kernels {

// A fixed set of threads that share the work items of one ParallelFor at a time.
//
// A step calls it some dozens of times, each for a few microseconds of work, so workers spin
// briefly between calls before they sleep, and a call allocates nothing. Items are claimed one by
// one: a worker that the operating system has put aside delays nobody but the item it holds. Which
// thread runs an item is therefore not determined, and results must not depend on it.
//
// ParallelFor is called by one thread at a time. Nothing may throw.
class ThreadTeam {
 public:
  // `threads` >= 1 counts the calling thread: ThreadTeam(1) starts none.
  explicit ThreadTeam(int32_t threads);
  ~ThreadTeam();  // No call may be running.
  ThreadTeam(const ThreadTeam&) = delete;
  ThreadTeam& operator=(const ThreadTeam&) = delete;

  int32_t threads() const { return static_cast<int32_t>(workers_.size()) + 1; }

  // Runs fn(i) once for every i in [0, items); returns when all have returned. What they wrote is
  // then visible to the caller. items <= kMaxItems.
  template <typename Fn>
  void ParallelFor(int64_t items, const Fn& fn) {
    Run(
        items, [](const void* context, int64_t item) { (*static_cast<const Fn*>(context))(item); },
        &fn);
  }

  static constexpr int64_t kMaxItems = (int64_t{1} << 24) - 1;

 private:
  using Body = void (*)(const void* context, int64_t item);

  void Run(int64_t items, Body body, const void* context);
  void WorkerLoop();
  // Claims and runs items of the current job until none is left.
  void Work();

  // (next item << 24) | items. One word, so that a claim proves that the job it read is still open.
  std::atomic<uint64_t> ticket_{0};
  std::atomic<int64_t> done_{0};
  // Moves on with each job; what idle workers watch and sleep on.
  std::atomic<uint32_t> generation_{0};
  std::atomic<bool> stop_{false};
  // Written before ticket_ opens a job; stable until its last item is done.
  Body body_ = nullptr;
  const void* context_ = nullptr;
  std::vector<std::thread> workers_;
};

}  // namespace lynx::kernels
