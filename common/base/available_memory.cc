#include "common/base/available_memory.h"

#include <algorithm>
#include <filesystem>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "common/base/cgroup.h"
#include "common/base/file.h"

namespace lynx {
namespace {

constexpr int64_t kUnlimited = std::numeric_limits<int64_t>::max();

}  // namespace

int64_t AvailableOf(std::string_view meminfo) {
  constexpr std::string_view kKey = "MemAvailable:";
  const size_t at = meminfo.find(kKey);
  if (at == std::string_view::npos) return 0;
  std::string_view rest = meminfo.substr(at + kKey.size());
  rest = rest.substr(0, rest.find('\n'));
  const size_t unit = rest.find("kB");
  int64_t kib = 0;
  if (unit == std::string_view::npos ||
      !absl::SimpleAtoi(std::string(rest.substr(0, unit)), &kib)) {
    return 0;
  }
  return kib * 1024;
}

int64_t LeftInCgroup(std::string_view limit, std::string_view usage, std::string_view stat) {
  int64_t most = 0;
  int64_t used = 0;
  if (!absl::SimpleAtoi(std::string(limit), &most) ||
      !absl::SimpleAtoi(std::string(usage), &used)) {
    return kUnlimited;
  }
  int64_t droppable = 0;
  for (const std::string& line :
       std::vector<std::string>(absl::StrSplit(std::string(stat), '\n'))) {
    const std::pair<std::string, std::string> entry = absl::StrSplit(line, absl::MaxSplits(' ', 1));
    int64_t bytes = 0;
    // Hierarchical v1 counts its children under the second name.
    if ((entry.first == "inactive_file" || entry.first == "total_inactive_file") &&
        absl::SimpleAtoi(entry.second, &bytes)) {
      droppable = std::max(droppable, bytes);
    }
  }
  return std::max<int64_t>(0, most - std::max<int64_t>(0, used - droppable));
}

int64_t AvailableMemory() {
  const int64_t of_machine = AvailableOf(ReadKernelFile("/proc/meminfo"));
  int64_t available = of_machine > 0 ? of_machine : kUnlimited;
  for (const std::filesystem::path& folder : CgroupFolders("memory")) {
    const std::string stat = ReadKernelFile(folder / "memory.stat");
    available = std::min({available,
                          LeftInCgroup(ReadKernelFile(folder / "memory.max"),
                                       ReadKernelFile(folder / "memory.current"), stat),
                          LeftInCgroup(ReadKernelFile(folder / "memory.limit_in_bytes"),
                                       ReadKernelFile(folder / "memory.usage_in_bytes"), stat)});
  }
  return available;
}

}  // namespace lynx
