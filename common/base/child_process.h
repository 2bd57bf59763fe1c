#pragma once

#include <signal.h>
#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace lynx {

// One program that this one started and stops. Owned and used by one thread.
//
// The child runs in a process group of its own, so that Ctrl-C reaches it only through its owner,
// and gets `death_signal` from the kernel should the owner die without stopping it, or the thread
// that started it end.
class ChildProcess {
 public:
  // Starts argv[0], a path; inherits standard error, and standard output too unless `output` names
  // the file it goes to. NotFound: no such program. Unavailable: the file cannot be written.
  static absl::StatusOr<ChildProcess> Start(std::string name, const std::vector<std::string>& argv,
                                            const std::string& output = "",
                                            int death_signal = SIGTERM);

  ChildProcess(ChildProcess&& other) noexcept;
  ChildProcess& operator=(ChildProcess&& other) noexcept;
  ~ChildProcess();  // Stop(0): kills a child that still runs.

  const std::string& name() const { return name_; }
  pid_t pid() const { return pid_; }  // -1 once the child is known to have ended.

  // How the child ended ("exit status 1", "signal 9"), or nothing while it runs.
  std::optional<std::string> Ended();

  // Asks the child to end (SIGTERM).
  void Terminate();
  // Waits for the end until `grace` has passed, then kills. True when it ended by itself with
  // status 0.
  bool Stop(absl::Duration grace);

 private:
  ChildProcess(std::string name, pid_t pid) : name_(std::move(name)), pid_(pid) {}
  bool Reap(bool block);

  std::string name_;
  pid_t pid_ = -1;  // -1 once reaped or moved from.
  int wait_status_ = 0;
};

// The running program's file; empty where that is not known.
std::string ProgramPath();

// Directory of the running program: its sibling binaries lie there.
std::string ProgramDirectory();

}  // namespace lynx
