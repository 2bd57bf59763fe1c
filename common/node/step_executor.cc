#include "common/node/step_executor.h"

#include <utility>

#include "common/base/check.h"

namespace lynx::node {

ThreadStepExecutor::ThreadStepExecutor(EventLoop& loop, std::function<void(bool)> on_busy)
    : loop_(loop), on_busy_(std::move(on_busy)), thread_([this] { Loop(); }) {}

ThreadStepExecutor::~ThreadStepExecutor() {
  {
    MutexLock lock(mu_);
    stopping_ = true;
    wake_.NotifyOne();
  }
  thread_.join();
}

void ThreadStepExecutor::Run(std::function<void()> step, std::function<void()> done) {
  MutexLock lock(mu_);
  LYNX_CHECK(!busy_);
  busy_ = true;
  step_ = std::move(step);
  done_ = std::move(done);
  wake_.NotifyOne();
}

void ThreadStepExecutor::Loop() {
  for (;;) {
    std::function<void()> step;
    std::function<void()> done;
    {
      MutexLock lock(mu_);
      while (!step_ && !stopping_) wake_.Wait(mu_);
      if (stopping_) return;
      step = std::exchange(step_, nullptr);
      done = std::exchange(done_, nullptr);
    }
    if (on_busy_) on_busy_(true);
    step();
    step = nullptr;
    if (on_busy_) on_busy_(false);
    {
      MutexLock lock(mu_);
      busy_ = false;
    }
    loop_.Post(std::move(done));
  }
}

void InlineStepExecutor::Run(std::function<void()> step, std::function<void()> done) {
  loop_.Post([this, step = std::move(step), done = std::move(done)]() mutable {
    step();
    // After what the step itself has posted, as with a thread.
    loop_.RunAfter(step_time_ ? step_time_() : absl::ZeroDuration(), std::move(done));
  });
}

}  // namespace lynx::node
