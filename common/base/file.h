#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace lynx {

// Replaces `path` with `content` so that a reader sees the old file or the new one, never a part.
absl::Status WriteFileAtomically(const std::filesystem::path& path, std::string_view content);

// The whole file. NotFound: cannot be opened. OutOfRange: longer than `max_bytes`. Both name it.
absl::StatusOr<std::string> ReadFile(const std::filesystem::path& path, size_t max_bytes);

// A small file of /proc or /sys, which tell no size; empty when it cannot be read.
std::string ReadKernelFile(const std::filesystem::path& path);

}  // namespace lynx
