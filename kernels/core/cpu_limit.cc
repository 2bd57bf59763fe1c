#include "kernels/core/cpu_limit.h"

#include <sched.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <limits>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/cgroup.h"
#include "common/base/file.h"

namespace lynx::kernels {
namespace {

int32_t AffinityCpus() {
  const auto cpus = static_cast<int32_t>(AllowedCpus().size());
  // The mask of more than 1024 CPUs does not fit.
  return cpus > 0 ? cpus : static_cast<int32_t>(std::thread::hardware_concurrency());
}

// The tightest quota of this process's cgroup and those around it.
int32_t CgroupCpus() {
  int32_t limit = 0;
  auto tighten = [&limit](int32_t cpus) {
    if (cpus > 0) limit = limit == 0 ? cpus : std::min(limit, cpus);
  };
  for (const std::filesystem::path& folder : CgroupFolders("cpu")) {
    tighten(CpusFromCgroupMax(ReadKernelFile(folder / "cpu.max")));
    tighten(CpusFromCgroupMax(absl::StrCat(ReadKernelFile(folder / "cpu.cfs_quota_us"), " ",
                                           ReadKernelFile(folder / "cpu.cfs_period_us"))));
  }
  return limit;
}

}  // namespace

int32_t CpusFromCgroupMax(std::string_view text) {
  const std::vector<std::string> fields =
      absl::StrSplit(std::string(text), absl::ByAnyChar(" \n\t"), absl::SkipEmpty());
  int64_t quota = 0;
  int64_t period = 0;
  if (fields.size() != 2 || !absl::SimpleAtoi(fields[0], &quota) ||
      !absl::SimpleAtoi(fields[1], &period) || quota <= 0 || period <= 0) {
    return 0;
  }
  const int64_t cpus = quota / period + (quota % period != 0 ? 1 : 0);
  return static_cast<int32_t>(std::min<int64_t>(cpus, std::numeric_limits<int32_t>::max()));
}

std::vector<int32_t> AllowedCpus() {
  std::vector<int32_t> cpus;
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) != 0) return cpus;
  for (int32_t cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &set)) cpus.push_back(cpu);
  }
  return cpus;
}

absl::StatusOr<std::vector<int32_t>> ParseCpuList(std::string_view text) {
  auto cpu_of = [](const std::string& digits, int32_t* cpu) {
    return !digits.empty() && std::all_of(digits.begin(), digits.end(), absl::ascii_isdigit) &&
           absl::SimpleAtoi(digits, cpu) && *cpu < CPU_SETSIZE;
  };
  std::set<int32_t> cpus;
  const std::vector<std::string> parts = absl::StrSplit(std::string(text), ',');
  for (const std::string& part : parts) {
    const std::pair<std::string, std::string> ends = absl::StrSplit(part, absl::MaxSplits('-', 1));
    int32_t first = 0;
    int32_t last = 0;
    if (!cpu_of(ends.first, &first) ||
        !cpu_of(part.find('-') == std::string::npos ? ends.first : ends.second, &last) ||
        last < first) {
      return absl::InvalidArgumentError(absl::StrCat(
          "'", std::string(text), "' is no list of CPUs below ", CPU_SETSIZE, ", as 0-7,16"));
    }
    for (int32_t cpu = first; cpu <= last; ++cpu) cpus.insert(cpu);
  }
  return std::vector<int32_t>(cpus.begin(), cpus.end());
}

absl::Status ConfineThisThread(std::span<const int32_t> cpus) {
  const std::vector<int32_t> allowed = AllowedCpus();
  cpu_set_t set;
  CPU_ZERO(&set);
  for (int32_t cpu : cpus) {
    if (!std::binary_search(allowed.begin(), allowed.end(), cpu)) {
      return absl::InvalidArgumentError(
          absl::StrCat("this process may not use CPU ", cpu, " or it is not there"));
    }
    CPU_SET(cpu, &set);
  }
  if (sched_setaffinity(0, sizeof(set), &set) != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("cannot confine a thread to ", cpus.size(), " CPUs: ", strerror(errno)));
  }
  return absl::OkStatus();
}

int32_t UsableCpus() {
  const int32_t affinity = std::max(1, AffinityCpus());
  const int32_t quota = CgroupCpus();
  return quota > 0 ? std::min(affinity, quota) : affinity;
}

}  // namespace lynx::kernels
