#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace lynx::kernels {

// CPUs that the text of a cgroup v2 `cpu.max` ("<quota|max> <period>") allows, rounded up; 0 for no
// limit or text that is not of that form.
int32_t CpusFromCgroupMax(std::string_view text);

// Threads worth running in this process: its affinity mask, capped by its cgroup's CPU quota (v2,
// or v1), at least 1. More would only be throttled.
int32_t UsableCpus();

// The CPUs of this thread's affinity mask, ascending; empty if the system does not tell.
std::vector<int32_t> AllowedCpus();

// Reads a list as in "0-7,16,18", ascending and each once. InvalidArgument: not of that form.
absl::StatusOr<std::vector<int32_t>> ParseCpuList(std::string_view text);

// Keeps this thread, and those it starts from now on, on `cpus`. InvalidArgument: one of them is
// not among AllowedCpus().
absl::Status ConfineThisThread(std::span<const int32_t> cpus);

}  // namespace lynx::kernels
