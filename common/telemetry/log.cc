#include "common/telemetry/log.h"

#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <atomic>
#include <cstdlib>
#include <memory>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/base/check.h"
#include "common/base/utf8.h"
#include "common/telemetry/log_level.h"

namespace lynx::telemetry {
namespace {

struct State {
  LogOptions options;
  std::atomic<LogLevel> min_level = LogLevel::kInfo;
  std::shared_ptr<spdlog::logger> logger;
};

State& GetState() {
  static State* state = [] {
    auto* made = new State;
    made->logger =
        std::make_shared<spdlog::logger>("lynx", std::make_shared<spdlog::sinks::stderr_sink_mt>());
    made->logger->set_pattern("%v");
    made->logger->set_level(spdlog::level::trace);
    made->logger->flush_on(spdlog::level::trace);
    return made;
  }();
  return *state;
}

spdlog::level::level_enum ToSpdlog(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return spdlog::level::debug;
    case LogLevel::kInfo:
      return spdlog::level::info;
    case LogLevel::kWarning:
      return spdlog::level::warn;
    case LogLevel::kError:
      return spdlog::level::err;
  }
  return spdlog::level::err;
}

std::string_view LevelName(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return "debug";
    case LogLevel::kInfo:
      return "info";
    case LogLevel::kWarning:
      return "warning";
    case LogLevel::kError:
      return "error";
  }
  return "error";
}

void AppendField(std::string_view key, std::string_view value, std::string& line) {
  line += ",\"";
  AppendJsonEscaped(key, line);
  line += "\":\"";
  AppendJsonEscaped(value, line);
  line += '"';
}

}  // namespace

LogLevel LogLevelOf(std::string_view name) {
  for (LogLevel level : {LogLevel::kDebug, LogLevel::kInfo, LogLevel::kWarning, LogLevel::kError}) {
    if (LevelName(level) == name) return level;
  }
  LYNX_CHECK_MSG(false, "no log level '" + std::string(name) + "'");
  std::abort();
}

void ConfigureLog(const LogOptions& options) {
  GetState().options = options;
  SetLogLevel(options.min_level);
}

void SetLogLevel(LogLevel level) { GetState().min_level.store(level); }

void Log(LogLevel level, std::string_view message, LogFields fields) {
  State& state = GetState();
  if (level < state.min_level.load()) return;
  std::string line = "{\"time\":\"";
  line += absl::FormatTime("%Y-%m-%dT%H:%M:%E6SZ", absl::Now(), absl::UTCTimeZone());
  line += '"';
  AppendField("level", LevelName(level), line);
  if (!state.options.component.empty()) AppendField("component", state.options.component, line);
  if (!state.options.incarnation.empty()) {
    AppendField("incarnation", state.options.incarnation, line);
  }
  AppendField("message", message, line);
  for (const auto& [key, value] : fields) AppendField(key, value, line);
  line += '}';
  state.logger->log(ToSpdlog(level), spdlog::string_view_t(line.data(), line.size()));
}

}  // namespace lynx::telemetry
