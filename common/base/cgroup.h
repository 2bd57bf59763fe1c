#pragma once

#include <filesystem>
#include <string_view>
#include <vector>

namespace lynx {

// The folders in which limits of `controller` ("cpu", "memory") on this process may stand, of
// cgroup v2 or v1: its own cgroup's first, then those around it up to the root of the mounted tree.
// Not all need exist.
std::vector<std::filesystem::path> CgroupFolders(std::string_view controller);

// The same, given the text of /proc/self/cgroup and where trees are mounted.
std::vector<std::filesystem::path> CgroupFoldersOf(std::string_view self,
                                                   std::string_view controller,
                                                   const std::filesystem::path& mounted);

}  // namespace lynx
