#include "common/concurrency/event_loop.h"

#include <algorithm>
#include <chrono>

#include "common/base/check.h"

namespace lynx {
namespace {

std::chrono::steady_clock::time_point ToSteady(absl::Time t) {
  return std::chrono::steady_clock::time_point(std::chrono::nanoseconds(absl::ToUnixNanos(t)));
}

}  // namespace

ThreadEventLoop::ThreadEventLoop() : thread_([this] { Run(); }) {}

ThreadEventLoop::~ThreadEventLoop() { Stop(); }

void ThreadEventLoop::Post(Task task) {
  MutexLock lock(mu_);
  if (stopping_) return;
  tasks_.push_back(std::move(task));
  wake_.NotifyOne();
}

TimerId ThreadEventLoop::RunAfter(absl::Duration delay, Task task) {
  MutexLock lock(mu_);
  const TimerId id = next_timer_++;
  if (stopping_) return id;
  const absl::Time due = Now() + std::max(delay, absl::ZeroDuration());
  timers_.emplace(std::pair(due, id), std::move(task));
  due_.emplace(id, due);
  wake_.NotifyOne();
  return id;
}

void ThreadEventLoop::CancelTimer(TimerId id) {
  Task doomed;  // Destroyed outside the lock: a captured object may post from its destructor.
  MutexLock lock(mu_);
  auto it = due_.find(id);
  if (it == due_.end()) return;
  auto timer = timers_.find(std::pair(it->second, id));
  doomed = std::move(timer->second);
  timers_.erase(timer);
  due_.erase(it);
}

void ThreadEventLoop::Stop() {
  {
    MutexLock lock(mu_);
    stopping_ = true;
    wake_.NotifyOne();
  }
  if (thread_.joinable()) {
    LYNX_CHECK(thread_.get_id() != std::this_thread::get_id());
    thread_.join();
  }
}

void ThreadEventLoop::RunAndWait(Task task) {
  Mutex mu;
  CondVar done_cv;
  bool done = false;
  Post([&] {
    task();
    MutexLock lock(mu);
    done = true;
    done_cv.NotifyOne();
  });
  MutexLock lock(mu);
  while (!done) done_cv.Wait(mu);
}

void ThreadEventLoop::Run() {
  std::vector<Task> batch;
  for (;;) {
    {
      MutexLock lock(mu_);
      for (;;) {
        if (stopping_) break;
        // Due timers run one by one, so that a task can still cancel a timer due at the same time.
        if (!timers_.empty() && timers_.begin()->first.first <= Now()) {
          due_.erase(timers_.begin()->first.second);
          batch.push_back(std::move(timers_.begin()->second));
          timers_.erase(timers_.begin());
          break;
        }
        if (!tasks_.empty()) {
          batch.swap(tasks_);
          break;
        }
        if (timers_.empty()) {
          wake_.Wait(mu_);
        } else {
          wake_.WaitUntil(mu_, ToSteady(timers_.begin()->first.first));
        }
      }
      if (stopping_) break;
    }
    for (Task& task : batch) {
      task();
      task = nullptr;
    }
    batch.clear();
  }
  // Destroy what never ran outside the lock, on this thread.
  std::vector<Task> tasks;
  std::map<std::pair<absl::Time, TimerId>, Task> timers;
  MutexLock lock(mu_);
  tasks.swap(tasks_);
  timers.swap(timers_);
  due_.clear();
}

void SimEventLoop::Post(Task task) { RunAfter(absl::ZeroDuration(), std::move(task)); }

TimerId SimEventLoop::RunAfter(absl::Duration delay, Task task) {
  const TimerId id = next_++;
  // Up to what the clock can show, or it would never be due.
  const absl::Duration wait =
      absl::Ceil(std::max(delay, absl::ZeroDuration()), absl::Nanoseconds(1));
  const absl::Time due = clock_.Now() + wait;
  queue_.emplace(std::pair(due, id), std::move(task));
  due_.emplace(id, due);
  return id;
}

void SimEventLoop::CancelTimer(TimerId id) {
  const auto due = due_.find(id);
  if (due == due_.end()) return;
  queue_.erase({due->second, id});
  due_.erase(due);
}

int SimEventLoop::RunDue() {
  int ran = 0;
  while (!queue_.empty() && queue_.begin()->first.first <= clock_.Now()) {
    Task task = std::move(queue_.begin()->second);
    due_.erase(queue_.begin()->first.second);
    queue_.erase(queue_.begin());
    task();
    ++ran;
  }
  return ran;
}

void SimEventLoop::Advance(absl::Duration by) {
  const absl::Time end = clock_.Now() + by;
  RunDue();
  while (!queue_.empty() && queue_.begin()->first.first <= end) {
    clock_.Advance(queue_.begin()->first.first - clock_.Now());
    RunDue();
  }
  clock_.Advance(end - clock_.Now());
}

}  // namespace lynx
