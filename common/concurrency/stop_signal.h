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
// care. After it the first signal makes Wait() return, and a second one ends the process at once
// with status 1. `log` hears why just before the process ends by itself like that.
//
// SIGHUP, SIGUSR1 and SIGUSR2 do nothing but what On() gives them.
class StopSignal {
 public:
  explicit StopSignal(std::function<void(const char* why)> log = nullptr);
  ~StopSignal();
  StopSignal(const StopSignal&) = delete;
  StopSignal& operator=(const StopSignal&) = delete;

  void Arm() LYNX_EXCLUDES(mu_);
  // Blocks until a signal came after Arm().
  void Wait() LYNX_EXCLUDES(mu_);
  // `call` runs on a thread of this object's at each such signal from now on; null: nothing does.
  // Returns once an earlier call of this signal's has ended. Not from within one.
  void On(int signal_number, std::function<void()> call) LYNX_EXCLUDES(calls_mu_);

 private:
  void Watch() LYNX_EXCLUDES(mu_);

  const std::function<void(const char*)> log_;
  Mutex mu_;
  CondVar changed_;
  bool armed_ LYNX_GUARDED_BY(mu_) = false;
  bool signalled_ LYNX_GUARDED_BY(mu_) = false;
  bool stopping_ LYNX_GUARDED_BY(mu_) = false;
  Mutex calls_mu_;  // Held during a call.
  std::map<int, std::function<void()>> calls_ LYNX_GUARDED_BY(calls_mu_);
  std::thread thread_;
};

}  // namespace lynx
