#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <ostream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace lynx::config {

// Bounds of a number, both inclusive.
struct IntRange {
  int64_t min = std::numeric_limits<int64_t>::min();
  int64_t max = std::numeric_limits<int64_t>::max();
};
struct DoubleRange {
  double min = std::numeric_limits<double>::lowest();
  double max = std::numeric_limits<double>::max();
};
struct DurationRange {
  absl::Duration min = absl::ZeroDuration();
  absl::Duration max = absl::InfiniteDuration();  // "inf" itself is never accepted.
};

enum class ParseOutcome {
  kRun,      // The fields are set; go on.
  kPrinted,  // --help or --version was answered; exit with 0.
};

// Declares the options of one program (or sub-command), each bound to a field of the program's
// config struct, whose value at declaration is the default.
//
//   RouterConfig config;
//   FlagSet flags("lynx-router", "Takes OpenAI-style requests ...");
//   flags.AddInt("port", &config.port, {1, 65535}, "TCP port of the HTTP server");
//   LYNX_ASSIGN_OR_RETURN(const ParseOutcome outcome, flags.Parse(argc, argv));
//
// Option `queue-limit` is the flag --queue-limit, the environment variable LYNX_QUEUE_LIMIT and the
// key queue-limit of the file named by --config (LYNX_CONFIG). The first of these that is given
// wins: flag, environment, file, default. Unknown flags and keys are errors; unknown variables are
// not, as an orchestrator may set some of that prefix by itself (Kubernetes sets LYNX_PORT in every
// pod beside a Service called `lynx`: switch enableServiceLinks off there).
//
// Fields must outlive Parse(). A wrong declaration (bad name, default out of range, name used
// twice) aborts. Not thread-safe.
class FlagSet {
 public:
  FlagSet(std::string program, std::string description);
  ~FlagSet();
  FlagSet(const FlagSet&) = delete;
  FlagSet& operator=(const FlagSet&) = delete;

  void AddString(const std::string& name, std::string* field, const std::string& help);
  // As AddString; the value is never printed, neither in help nor by Describe().
  void AddSecret(const std::string& name, std::string* field, const std::string& help);
  void AddInt(const std::string& name, int32_t* field, IntRange range, const std::string& help);
  void AddInt(const std::string& name, int64_t* field, IntRange range, const std::string& help);
  void AddDouble(const std::string& name, double* field, DoubleRange range,
                 const std::string& help);
  // --name, --name=true, --name=false.
  void AddBool(const std::string& name, bool* field, const std::string& help);
  // "500ms", "2s", "1m30s"; a unit is required except for 0.
  void AddDuration(const std::string& name, absl::Duration* field, DurationRange range,
                   const std::string& help);
  // "4096", "64KiB", "1.5GiB", "2GB".
  void AddBytes(const std::string& name, int64_t* field, IntRange range, const std::string& help);
  // --name a --name b or --name a,b; commas split the environment's value too; an array in a file.
  // A given list replaces the default; an empty text is an empty list.
  void AddStrings(const std::string& name, std::vector<std::string>* field,
                  const std::string& help);
  void AddChoice(const std::string& name, std::string* field,
                 const std::vector<std::string>& choices, const std::string& help);
  // What follows the flags; without this, extra arguments are errors.
  void AddPositional(const std::string& name, std::string* field, const std::string& help);

  // The option `name` takes no value from the environment: its variable means something else to
  // another program.
  void IgnoreEnvironment(const std::string& name);

  // Adds --check-config and --print-config, which only the command line takes. See
  // AnswerConfigActions().
  void AddConfigActions();

  // Reads flags, environment and file, and sets the fields; argv[0] is skipped. On an error fields
  // may be partly set: print the message and exit with a failure.
  //   InvalidArgument  unknown flag or key, malformed or out-of-range value; names the option, the
  //                    value, what is allowed and where the value came from.
  //   NotFound         the config file cannot be read.
  absl::StatusOr<ParseOutcome> Parse(int argc, const char* const* argv);
  // Call once the program has checked what no single option can, and exit with 0 when true: the
  // command line had --print-config, which prints ToConfigFile(), or --check-config.
  bool AnswerConfigActions() const;
  // That one of them is there.
  bool HasConfigAction() const;
  // Where --help, --version, --check-config and --print-config print; std::cout unless set.
  void SetOutput(std::ostream* out);

  // The effective values after Parse() for the start-up log, secrets masked:
  // "port=8000 (flag) host=0.0.0.0 (default) api-key=<set> (environment)".
  std::string Describe() const;
  // The effective values as a config file that gives the same ones, without the secrets, which a
  // comment stands for.
  std::string ToConfigFile() const;
  // The same as pairs of name and value, without --config.
  std::vector<std::pair<std::string, std::string>> Values() const;

 private:
  struct Option;
  struct Impl;
  Option& Declare(const std::string& name, const std::string& help);
  std::unique_ptr<Impl> impl_;
};

// The project's version: "0.1.0".
std::string_view Version();

// "64KiB" -> 65536. Units B, KB, MB, GB, TB (powers of 1000), KiB, MiB, GiB, TiB (of 1024); none
// means bytes. InvalidArgument otherwise, also for a negative size or one past 2^63.
absl::StatusOr<int64_t> ParseBytes(std::string_view text);
// The shortest exact form: 65536 -> "64KiB", 1000 -> "1000".
std::string FormatBytes(int64_t bytes);

}  // namespace lynx::config
