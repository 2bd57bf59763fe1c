#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"

namespace lynx::kernels {

// A fixed set of threads that share the work items of one ParallelFor at a time.
//
// A step calls it hundreds of times, each for some microseconds of work, so workers spin between
// calls before they sleep, and a call allocates nothing. Each thread owns a contiguous range of the
// items, the same one whenever there are as many items, so that it meets the memory it met before;
// when done it takes items from the ends of others' ranges, so a thread that the operating system
// has put aside delays nobody but the item it holds. Which thread runs an item is therefore not
// determined, and results must not depend on it.
//
// ParallelFor is called by one thread at a time. Nothing may throw.
class ThreadTeam {
 public:
  // `threads` >= 1 counts the calling thread: ThreadTeam(1) starts none. With `cpus`, thread i is
  // pinned to cpus[i % size], the calling thread (at its first call) to cpus[0]: threads that it
  // starts later inherit that. A CPU that this process may not use leaves its thread unpinned.
  // Dies where the system gives fewer threads; Create() says ResourceExhausted instead.
  explicit ThreadTeam(int32_t threads, std::vector<int32_t> cpus = {});
  static absl::StatusOr<std::unique_ptr<ThreadTeam>> Create(int32_t threads,
                                                            std::vector<int32_t> cpus = {});
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

  static constexpr int64_t kMaxItems = int64_t{1} << 31;

 private:
  using Body = void (*)(const void* context, int64_t item);

  // The unclaimed items [begin, end) of one thread's range, as (begin << 32) | end. One word, so
  // that a claim proves that the item was still open, and with it the job it belongs to.
  struct alignas(64) Range {
    std::atomic<uint64_t> items{0};
  };

  explicit ThreadTeam(std::vector<int32_t> cpus) : cpus_(std::move(cpus)) {}
  absl::Status Start(int32_t threads);
  void Run(int64_t items, Body body, const void* context);
  void WorkerLoop(int32_t thread);
  // Claims and runs items of the current job until none is left.
  void Work(int32_t thread);

  const std::vector<int32_t> cpus_;
  std::unique_ptr<Range[]> ranges_;  // One a thread.
  alignas(64) std::atomic<int64_t> done_{0};
  // Moves on with each job; what idle workers watch and sleep on.
  alignas(64) std::atomic<uint32_t> generation_{0};
  std::atomic<bool> stop_{false};
  // Written before ranges_ open a job; stable until its last item is done.
  Body body_ = nullptr;
  const void* context_ = nullptr;
  std::vector<std::thread> workers_;
};

}  // namespace lynx::kernels
