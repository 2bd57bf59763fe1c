#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace lynx::config {

// One `key = value` line of a config file.
struct ConfigEntry {
  std::string key;
  std::vector<std::string> values;  // One for a scalar; any number for an array.
  int line = 0;
};

// Reads the flat part of TOML: `key = value` lines, blank lines and # comments. A value is a bare
// word or number (8000, 2s, 64MiB, true), a "quoted string" (escapes \" \\ and \n) or a one-line
// array of these.
//
// Not CLI11's own reader: that one cuts quoted values at '#', skips short lines and takes a line
// without '=' for a flag, so a slip of the pen would start the program with other settings.
//
//   InvalidArgument  a malformed line or a key given twice; names `file_name` and the line.
absl::StatusOr<std::vector<ConfigEntry>> ParseConfigFile(std::string_view text,
                                                         const std::string& file_name);

// Any text as a value that reads as this text: a bare word where that will do, or quoted.
std::string QuoteConfigValue(std::string_view value);

}  // namespace lynx::config
