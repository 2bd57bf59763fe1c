#pragma once

#include <cstdint>
#include <string_view>

namespace lynx {

// Bytes that this process may take now: of what the machine has left and of what the memory cgroups
// leave that it runs in. The largest number where the system does not say.
int64_t AvailableMemory();

// MemAvailable of the text of /proc/meminfo, in bytes; 0 where it does not say.
int64_t AvailableOf(std::string_view meminfo);
// What a memory cgroup leaves, of the texts of its limit ("max" or bytes), of its usage in bytes
// and of its memory.stat: what it can drop is not counted as used. The largest number for no limit.
int64_t LeftInCgroup(std::string_view limit, std::string_view usage, std::string_view stat);

}  // namespace lynx
