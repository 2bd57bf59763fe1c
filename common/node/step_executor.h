#pragma once

#include <functional>
#include <thread>
#include <utility>

#include "common/base/mutex.h"
#include "common/concurrency/event_loop.h"

namespace lynx::node {

// Runs the steps of an engine, one at a time, away from the loop that decides what they do.
class StepExecutor {
 public:
  virtual ~StepExecutor() = default;

  // Runs `step`, then posts `done` to the loop. Not while another step is running (aborts): the
  // owner keeps one in flight. Called on the loop.
  virtual void Run(std::function<void()> step, std::function<void()> done) = 0;
};

// A thread of its own, so that a long step never holds up heartbeats, cancellations or KV traffic.
class ThreadStepExecutor final : public StepExecutor {
 public:
  // `on_busy` hears, on any thread, that a step begins (true) and that it is over; may be null.
  explicit ThreadStepExecutor(EventLoop& loop, std::function<void(bool)> on_busy = nullptr);
  ~ThreadStepExecutor() override;  // Waits for the running step.

  void Run(std::function<void()> step, std::function<void()> done) override LYNX_EXCLUDES(mu_);

 private:
  void Loop() LYNX_EXCLUDES(mu_);

  EventLoop& loop_;
  const std::function<void(bool)> on_busy_;
  Mutex mu_;
  CondVar wake_;
  std::function<void()> step_ LYNX_GUARDED_BY(mu_);
  std::function<void()> done_ LYNX_GUARDED_BY(mu_);
  bool busy_ LYNX_GUARDED_BY(mu_) = false;
  bool stopping_ LYNX_GUARDED_BY(mu_) = false;
  std::thread thread_;
};

// Runs the step on the loop itself: a whole cluster in one thread, under a simulated clock. A step
// takes `step_time()` of the loop's time, asked once it has run; null: none.
class InlineStepExecutor final : public StepExecutor {
 public:
  explicit InlineStepExecutor(EventLoop& loop, std::function<absl::Duration()> step_time = nullptr)
      : loop_(loop), step_time_(std::move(step_time)) {}
  void Run(std::function<void()> step, std::function<void()> done) override;

 private:
  EventLoop& loop_;
  const std::function<absl::Duration()> step_time_;
};

}  // namespace lynx::node
