#include "common/telemetry/process_metrics.h"

#include <sys/resource.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace lynx::telemetry {
namespace {

void Append(std::string& out, const char* name, const char* type, const char* help, double value) {
  absl::StrAppendFormat(&out, "# HELP %s %s\n# TYPE %s %s\n%s %.17g\n", name, help, name, type,
                        name, value);
}

double StartTimeSeconds() {
  static const double start =
      std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
  return start;
}
// Taken while statics are initialised, so that it is the process's start and not the first scrape.
const double kStart = StartTimeSeconds();

}  // namespace

std::string RenderProcessMetrics() {
  std::string out;
  rusage usage{};
  if (getrusage(RUSAGE_SELF, &usage) == 0) {
    const auto seconds = [](const timeval& t) {
      return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) * 1e-6;
    };
    Append(out, "process_cpu_seconds_total", "counter", "User and system CPU time spent.",
           seconds(usage.ru_utime) + seconds(usage.ru_stime));
  }
  int64_t virtual_pages = 0;
  int64_t resident_pages = 0;
  if (std::ifstream("/proc/self/statm") >> virtual_pages >> resident_pages) {
    const double page = static_cast<double>(sysconf(_SC_PAGESIZE));
    Append(out, "process_virtual_memory_bytes", "gauge", "Virtual memory size.",
           static_cast<double>(virtual_pages) * page);
    Append(out, "process_resident_memory_bytes", "gauge", "Resident memory size.",
           static_cast<double>(resident_pages) * page);
  }
  std::error_code error;
  int64_t open_files = 0;
  for (std::filesystem::directory_iterator it("/proc/self/fd", error), end; !error && it != end;
       it.increment(error)) {
    ++open_files;
  }
  if (!error) {
    Append(out, "process_open_fds", "gauge", "Open file descriptors.",
           static_cast<double>(open_files));
  }
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
    Append(out, "process_max_fds", "gauge", "Limit of open file descriptors.",
           static_cast<double>(limit.rlim_cur));
  }
  Append(out, "process_start_time_seconds", "gauge", "Start of the process, Unix time.", kStart);
  return out;
}

}  // namespace lynx::telemetry
