#include "common/base/cgroup.h"

#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/file.h"

namespace lynx {

std::vector<std::filesystem::path> CgroupFoldersOf(std::string_view self,
                                                   std::string_view controller,
                                                   const std::filesystem::path& mounted) {
  std::vector<std::filesystem::path> folders;
  // Each line is hierarchy:controllers:path; v2 is the one without controllers.
  for (const std::string& line :
       std::vector<std::string>(absl::StrSplit(std::string(self), '\n'))) {
    const std::vector<std::string> fields = absl::StrSplit(line, absl::MaxSplits(':', 2));
    if (fields.size() != 3) continue;
    const std::string name(controller);
    const bool v1 = absl::StrContains(absl::StrCat(",", fields[1], ","), "," + name + ",");
    if (!v1 && !fields[1].empty()) continue;
    const std::string root = (v1 ? mounted / name : mounted).string();
    for (std::string path = fields[2];; path.erase(path.rfind('/'))) {
      folders.emplace_back(root + path);
      if (path.rfind('/') == std::string::npos) break;
    }
  }
  return folders;
}

std::vector<std::filesystem::path> CgroupFolders(std::string_view controller) {
  return CgroupFoldersOf(ReadKernelFile("/proc/self/cgroup"), controller, "/sys/fs/cgroup");
}

}  // namespace lynx
