#pragma once

#include <cstdint>
#include <string_view>

namespace lynx::kernels {

// CPUs that the text of a cgroup v2 `cpu.max` ("<quota|max> <period>") allows, rounded up; 0 for no
// limit or text that is not of that form.
int32_t CpusFromCgroupMax(std::string_view text);

// Threads worth running in this process: its affinity mask, capped by its cgroup's CPU quota (v2,
// or v1), at least 1. More would only be throttled.
int32_t UsableCpus();

}  // namespace lynx::kernels
