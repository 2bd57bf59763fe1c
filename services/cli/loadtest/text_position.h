#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace lynx::loadtest {

// Calls `line` (returns absl::Status) with each line of `text` without its line end, and its number
// from 1; blank lines are skipped. Stops at the first error.
template <typename Fn>
absl::Status ForEachLine(std::string_view text, Fn line) {
  size_t number = 0;
  while (!text.empty()) {
    const size_t end = text.find('\n');
    std::string_view one = text.substr(0, end);
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
    ++number;
    if (one.ends_with('\r')) one.remove_suffix(1);
    if (number == 1 && one.starts_with("\xEF\xBB\xBF")) one.remove_prefix(3);
    if (one.find_first_not_of(" \t") == std::string_view::npos) continue;
    if (absl::Status status = line(one, number); !status.ok()) return status;
  }
  return absl::OkStatus();
}

// "trace.csv:3:17: what"; the column counts bytes from 1.
inline absl::Status ErrorAt(const std::string& file, size_t line, size_t column,
                            std::string_view what) {
  return absl::InvalidArgumentError(
      absl::StrCat(file, ":", line, ":", column, ": ", std::string(what)));
}

}  // namespace lynx::loadtest
