#pragma once

#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"

// Structured logs: one JSON object a line on stderr. Exactly one layer logs an error: the one that
// decides what to do about it. Never prompt or answer text, never keys.
//
//   LogInfo("listening", {{"address", address}, {"port", StrCat(port)}});
//   LogWarning("prefill refused", {{"request_id", id}, {"reason", reason}});
namespace lynx::telemetry {

enum class LogLevel { kDebug, kInfo, kWarning, kError };

// "debug", "info", "warning" or "error": the values of --log-level. Aborts on anything else.
LogLevel LogLevelOf(std::string_view name);

using LogFields = std::initializer_list<std::pair<std::string_view, std::string>>;

struct LogOptions {
  LogLevel min_level = LogLevel::kInfo;
  std::string component;  // In every line: "router", "prefill", "decode", ...
  std::string incarnation;
};

// Sets the options of the process. Call once, before threads start; without it everything from
// kInfo up is written with an empty component.
void ConfigureLog(const LogOptions& options);

// Thread-safe; one write per line. Invalid UTF-8 is replaced, so a line is always valid JSON.
void Log(LogLevel level, std::string_view message, LogFields fields = {});

inline void LogDebug(std::string_view message, LogFields fields = {}) {
  Log(LogLevel::kDebug, message, fields);
}
inline void LogInfo(std::string_view message, LogFields fields = {}) {
  Log(LogLevel::kInfo, message, fields);
}
inline void LogWarning(std::string_view message, LogFields fields = {}) {
  Log(LogLevel::kWarning, message, fields);
}
inline void LogError(std::string_view message, LogFields fields = {}) {
  Log(LogLevel::kError, message, fields);
}

}  // namespace lynx::telemetry
