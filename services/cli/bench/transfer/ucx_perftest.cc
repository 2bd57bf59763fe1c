#include "services/cli/bench/transfer/ucx_perftest.h"

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "common/base/child_process.h"
#include "common/base/clock.h"
#include "common/base/file.h"
#include "common/base/status_macros.h"

namespace lynx::cli {
namespace {

constexpr absl::Duration kTimeout = absl::Seconds(60);
constexpr absl::Duration kPoll = absl::Milliseconds(5);
// A client that comes before its server listens fails, and is tried again.
constexpr absl::Duration kConnectTimeout = absl::Seconds(5);
constexpr char kNotInstalled[] = "exit status 127";  // As `env` says.

// The server must be told one; nobody can take it meanwhile but by bad luck.
absl::StatusOr<int> FreePort() {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  const bool found =
      fd >= 0 && bind(fd, generic, size) == 0 && getsockname(fd, generic, &size) == 0;
  const int error = errno;
  if (fd >= 0) close(fd);
  if (!found) return absl::UnavailableError(absl::StrCat("no free port: ", strerror(error)));
  return ntohs(address.sin_port);
}

std::vector<std::string> Command(const std::string& transports,
                                 const std::vector<std::string>& arguments) {
  std::vector<std::string> argv = {"/usr/bin/env", absl::StrCat("UCX_TLS=", transports),
                                   "UCX_WARN_UNUSED_ENV_VARS=n", "ucx_perftest"};
  argv.insert(argv.end(), arguments.begin(), arguments.end());
  return argv;
}

absl::StatusOr<std::string> AwaitEnd(ChildProcess& child) {
  const absl::Time deadline = SteadyClock::Instance().Now() + kTimeout;
  for (;;) {
    if (const auto ended = child.Ended()) return *ended;
    if (SteadyClock::Instance().Now() >= deadline) {
      return absl::DeadlineExceededError("ucx_perftest took too long");
    }
    absl::SleepFor(kPoll);
  }
}

}  // namespace

absl::StatusOr<double> ReadUcxPerftest(const std::string& text) {
  const std::vector<std::string> lines = absl::StrSplit(text, '\n', absl::SkipEmpty());
  for (size_t i = 0; i + 1 < lines.size(); ++i) {
    const std::vector<std::string> names = absl::StrSplit(lines[i], ',');
    const std::vector<std::string> values = absl::StrSplit(lines[i + 1], ',');
    const auto column =
        static_cast<size_t>(std::find(names.begin(), names.end(), "overall_bw") - names.begin());
    double mebibytes = 0;
    if (column < names.size() && column < values.size() &&
        absl::SimpleAtod(values[column], &mebibytes) && mebibytes > 0) {
      return mebibytes * (1 << 20);
    }
  }
  return absl::UnavailableError(
      absl::StrCat("ucx_perftest printed no bandwidth but '", text.substr(0, 200), "'"));
}

absl::StatusOr<double> MeasureUcxPerftest(const std::string& transports, int64_t message_bytes,
                                          int64_t messages, const std::string& scratch) {
  LYNX_ASSIGN_OR_RETURN(const int port, FreePort());
  const std::string at = absl::StrCat(port);
  LYNX_ASSIGN_OR_RETURN(ChildProcess server,
                        ChildProcess::Start("ucx_perftest server", Command(transports, {"-p", at}),
                                            scratch + "/perftest-server"));
  const std::vector<std::string> command =
      Command(transports, {"127.0.0.1", "-p", at, "-t", "ucp_am_bw", "-s",
                           absl::StrCat(message_bytes), "-n", absl::StrCat(messages), "-w",
                           absl::StrCat(std::max<int64_t>(2, messages / 10)), "-f", "-v"});
  const std::string output = scratch + "/perftest-client";
  const absl::Time connect_by = SteadyClock::Instance().Now() + kConnectTimeout;
  for (;;) {
    LYNX_ASSIGN_OR_RETURN(ChildProcess client,
                          ChildProcess::Start("ucx_perftest client", command, output));
    LYNX_ASSIGN_OR_RETURN(const std::string ended, AwaitEnd(client));
    if (ended == "exit status 0") break;
    if (ended == kNotInstalled) return absl::NotFoundError("ucx_perftest is not installed");
    if (server.Ended().has_value() || SteadyClock::Instance().Now() >= connect_by) {
      return absl::UnavailableError(absl::StrCat("ucx_perftest over ", transports, ": ", ended));
    }
    absl::SleepFor(absl::Milliseconds(50));
  }
  LYNX_ASSIGN_OR_RETURN(const std::string text, ReadFile(output, 1 << 16));
  return ReadUcxPerftest(text);
}

}  // namespace lynx::cli
