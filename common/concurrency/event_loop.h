#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/base/mutex.h"

namespace lynx {

using TimerId = uint64_t;  // Never 0, never reused within a loop.

// The one thread that owns a component's state: everything the component does runs as a task of
// its loop, in order, so the state needs no lock.
//
// The queue of posted tasks has no bound of its own: a poster bounds what it has in flight (the
// transport by its high-water mark, HTTP by its connection limit, the engine by one result a step).
class EventLoop {
 public:
  using Task = std::function<void()>;
  virtual ~EventLoop() = default;

  // Runs `task` on the loop's thread after everything posted before it. Thread-safe; never blocks;
  // never runs the task inside the call. After the loop has stopped the task is dropped.
  virtual void Post(Task task) = 0;

  // Runs `task` on the loop's thread once `delay` has passed. Thread-safe.
  virtual TimerId RunAfter(absl::Duration delay, Task task) = 0;

  // The task will not run after Cancel returns when called on the loop's thread. Unknown, past and
  // cancelled ids are ignored. Thread-safe.
  virtual void CancelTimer(TimerId id) = 0;

  // The loop's clock. Thread-safe.
  virtual const Clock& clock() const = 0;
  absl::Time Now() const { return clock().Now(); }
};

// A real thread and the steady clock. Runs from construction to Stop().
class ThreadEventLoop final : public EventLoop {
 public:
  ThreadEventLoop();
  ~ThreadEventLoop() override;  // Stop().

  void Post(Task task) override LYNX_EXCLUDES(mu_);
  TimerId RunAfter(absl::Duration delay, Task task) override LYNX_EXCLUDES(mu_);
  void CancelTimer(TimerId id) override LYNX_EXCLUDES(mu_);
  const Clock& clock() const override { return SteadyClock::Instance(); }

  // Returns when the running task has ended; tasks not yet started are destroyed unrun. Idempotent.
  // Not from the loop's own thread.
  void Stop() LYNX_EXCLUDES(mu_);

  // Runs `task` on the loop and waits for it. Not from the loop's own thread; the loop must not
  // have stopped.
  void RunAndWait(Task task);

 private:
  void Run();

  Mutex mu_;
  CondVar wake_;
  std::vector<Task> tasks_ LYNX_GUARDED_BY(mu_);
  std::map<std::pair<absl::Time, TimerId>, Task> timers_ LYNX_GUARDED_BY(mu_);
  std::map<TimerId, absl::Time> due_ LYNX_GUARDED_BY(mu_);
  TimerId next_timer_ LYNX_GUARDED_BY(mu_) = 1;
  bool stopping_ LYNX_GUARDED_BY(mu_) = false;
  std::thread thread_;
};

// Runs tasks on the caller's thread under a clock that only Advance() moves. Equal due times run
// in order of creation, so a run is a pure function of its inputs. For tests and simulation;
// not thread-safe.
class SimEventLoop final : public EventLoop {
 public:
  explicit SimEventLoop(ManualClock& clock) : clock_(clock) {}

  void Post(Task task) override;
  TimerId RunAfter(absl::Duration delay, Task task) override;
  void CancelTimer(TimerId id) override;
  const Clock& clock() const override { return clock_; }

  // Runs every task and timer due at the present time, those they create included. Returns how
  // many ran.
  int RunDue();
  // Moves time forward from event to event, running each at its due time.
  void Advance(absl::Duration by);

 private:
  ManualClock& clock_;
  std::map<std::pair<absl::Time, TimerId>, Task> queue_;
  std::map<TimerId, absl::Time> due_;
  TimerId next_ = 1;
};

}  // namespace lynx
