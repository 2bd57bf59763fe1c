#include "common/concurrency/stop_signal.h"

#include <pthread.h>
#include <signal.h>

#include <cstdlib>
#include <utility>

namespace lynx {
namespace {

sigset_t WatchedSet() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGINT);
  sigaddset(&set, SIGTERM);
  sigaddset(&set, SIGHUP);
  sigaddset(&set, SIGUSR1);
  sigaddset(&set, SIGUSR2);
  return set;
}

}  // namespace

StopSignal::StopSignal(std::function<void(const char* why)> log) : log_(std::move(log)) {
  const sigset_t set = WatchedSet();
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
  // A peer that closes its socket is an error of that call, not the end of the process.
  signal(SIGPIPE, SIG_IGN);
  thread_ = std::thread([this] { Watch(); });
}

StopSignal::~StopSignal() {
  {
    MutexLock lock(mu_);
    stopping_ = true;
  }
  // Wakes the watching thread; harmless to others, which have the signal blocked.
  pthread_kill(thread_.native_handle(), SIGTERM);
  thread_.join();
}

void StopSignal::Arm() {
  MutexLock lock(mu_);
  armed_ = true;
}

void StopSignal::Request() {
  MutexLock lock(mu_);
  requested_ = true;
  changed_.NotifyAll();
}

void StopSignal::Wait() {
  MutexLock lock(mu_);
  while (!requested_) changed_.Wait(mu_);
}

bool StopSignal::hurried() const {
  MutexLock lock(mu_);
  return signals_ > 1;
}

void StopSignal::On(int signal_number, std::function<void()> call) {
  MutexLock lock(calls_mu_);
  calls_[signal_number] = std::move(call);
}

void StopSignal::Watch() {
  const sigset_t set = WatchedSet();
  for (;;) {
    int signal_number = 0;
    sigwait(&set, &signal_number);
    if (signal_number != SIGINT && signal_number != SIGTERM) {
      MutexLock lock(calls_mu_);
      const auto call = calls_.find(signal_number);
      if (call != calls_.end() && call->second != nullptr) call->second();
      continue;
    }
    MutexLock lock(mu_);
    if (stopping_) return;
    if (!armed_) {
      if (log_) log_("stopped while starting");
      std::_Exit(0);
    }
    if (++signals_ > 2) {
      if (log_) log_("third signal, ending at once");
      std::_Exit(1);
    }
    if (signals_ == 2 && log_) log_("second signal, ending without waiting for work to finish");
    requested_ = true;
    changed_.NotifyAll();
  }
}

}  // namespace lynx
