#include "common/base/child_process.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/clock.h"

namespace lynx {

absl::StatusOr<ChildProcess> ChildProcess::Start(std::string name,
                                                 const std::vector<std::string>& argv,
                                                 const std::string& output, int death_signal) {
  if (access(argv[0].c_str(), X_OK) != 0) {
    return absl::NotFoundError(absl::StrCat(argv[0], ": ", strerror(errno)));
  }
  int to = -1;
  if (!output.empty()) {
    to = open(output.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (to < 0) return absl::UnavailableError(absl::StrCat(output, ": ", strerror(errno)));
  }
  std::vector<char*> arguments;
  for (const std::string& argument : argv) arguments.push_back(const_cast<char*>(argument.c_str()));
  arguments.push_back(nullptr);
  const pid_t owner = getpid();
  const pid_t pid = fork();
  const int fork_error = errno;
  if (pid == 0) {
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, death_signal);
    if (getppid() != owner) _exit(127);  // The owner died before the line above took effect.
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, nullptr);
    if (to >= 0) dup2(to, STDOUT_FILENO);
    execv(arguments[0], arguments.data());
    _exit(127);
  }
  if (to >= 0) close(to);
  if (pid < 0) return absl::ResourceExhaustedError(absl::StrCat("fork: ", strerror(fork_error)));
  return ChildProcess(std::move(name), pid);
}

ChildProcess::ChildProcess(ChildProcess&& other) noexcept
    : name_(std::move(other.name_)),
      pid_(std::exchange(other.pid_, -1)),
      wait_status_(other.wait_status_) {}

ChildProcess& ChildProcess::operator=(ChildProcess&& other) noexcept {
  if (this != &other) {
    Stop(absl::ZeroDuration());
    name_ = std::move(other.name_);
    pid_ = std::exchange(other.pid_, -1);
    wait_status_ = other.wait_status_;
  }
  return *this;
}

ChildProcess::~ChildProcess() { Stop(absl::ZeroDuration()); }

bool ChildProcess::Reap(bool block) {
  if (pid_ < 0) return true;
  if (waitpid(pid_, &wait_status_, block ? 0 : WNOHANG) != pid_) return false;
  pid_ = -1;
  return true;
}

std::optional<std::string> ChildProcess::Ended() {
  if (!Reap(/*block=*/false)) return std::nullopt;
  if (WIFSIGNALED(wait_status_)) return absl::StrCat("signal ", WTERMSIG(wait_status_));
  return absl::StrCat("exit status ", WEXITSTATUS(wait_status_));
}

void ChildProcess::Terminate() {
  if (pid_ > 0) kill(pid_, SIGTERM);
}

bool ChildProcess::Stop(absl::Duration grace) {
  const absl::Time deadline = SteadyClock::Instance().Now() + grace;
  while (!Reap(/*block=*/false)) {
    if (SteadyClock::Instance().Now() >= deadline) {
      kill(pid_, SIGKILL);
      Reap(/*block=*/true);
      return false;
    }
    absl::SleepFor(absl::Milliseconds(10));
  }
  return WIFEXITED(wait_status_) && WEXITSTATUS(wait_status_) == 0;
}

std::string ProgramPath() {
  std::error_code error;
  return std::filesystem::read_symlink("/proc/self/exe", error).string();
}

std::string ProgramDirectory() {
  const std::filesystem::path self = ProgramPath();
  return self.empty() ? std::string(".") : self.parent_path().string();
}

}  // namespace lynx
