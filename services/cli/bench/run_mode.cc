#include "services/cli/bench/run_mode.h"

#include "absl/status/statusor.h"
#include "common/telemetry/log.h"

namespace lynx::cli {

int RunMode(config::FlagSet& flags, int argc, const char* const* argv, std::ostream& err,
            absl::FunctionRef<absl::Status()> run) {
  const absl::StatusOr<config::ParseOutcome> outcome = flags.Parse(argc, argv);
  if (outcome.ok() && *outcome == config::ParseOutcome::kPrinted) return 0;
  const absl::Status status = outcome.ok() ? run() : outcome.status();
  if (status.ok()) return 0;
  err << "lynx bench " << argv[1] << ": " << status.message() << "\n";
  return !outcome.ok() || absl::IsInvalidArgument(status) ? 2 : 1;
}

void LogWarningsOnly() {
  telemetry::ConfigureLog(
      {.min_level = telemetry::LogLevel::kWarning, .component = "bench", .incarnation = ""});
}

}  // namespace lynx::cli
