#pragma once

#include <functional>
#include <map>
#include <thread>

#include "common/base/mutex.h"

namespace lynx {

// SIGINT and SIGTERM as an event, and other signals as calls. Construct first thing in main(),
// before any thread starts, so that every thread inherits the blocked signals.
//
// Until Arm() a signal ends the process at once with status 0: nothing has begun that would need
// care. After it the first signal makes Wait() return, a second one asks whoever finishes its work
// to hurry, and a third ends the process at once with status 1. `log` hears of each but the first.
//
// SIGHUP, SIGUSR1 and SIGUSR2 do nothing but what On() gives them.
class StopSignal {
 public:
  explicit StopSignal(std::function<void(const char* why)> log = nullptr);
  ~StopSignal();
  StopSignal(const StopSignal&) = delete;
  StopSignal& operator=(const StopSignal&) = delete;

  void Arm() LYNX_EXCLUDES(mu_);
  // As the first signal does, if none came yet. Never ends the process by itself.
  void Request() LYNX_EXCLUDES(mu_);
  // Blocks until a signal came after Arm(), or Request() was called.
  void Wait() LYNX_EXCLUDES(mu_);
  // A second signal came: no more waiting for work to finish.
  bool hurried() const LYNX_EXCLUDES(mu_);
  // `call` runs on a thread of this object's at each such signal from now on; null: nothing does.
  // Returns once an earlier call of this signal's has ended. Not from within one.
  void On(int signal_number, std::function<void()> call) LYNX_EXCLUDES(calls_mu_);

 private:
  void Watch() LYNX_EXCLUDES(mu_);

  const std::function<void(const char*)> log_;
  mutable Mutex mu_;
  CondVar changed_;
  bool armed_ LYNX_GUARDED_BY(mu_) = false;
  bool requested_ LYNX_GUARDED_BY(mu_) = false;
  int signals_ LYNX_GUARDED_BY(mu_) = 0;  // Since Arm().
  bool stopping_ LYNX_GUARDED_BY(mu_) = false;
  Mutex calls_mu_;  // Held during a call.
  std::map<int, std::function<void()>> calls_ LYNX_GUARDED_BY(calls_mu_);
  std::thread thread_;
};

}  // namespace lynx
