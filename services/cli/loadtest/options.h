#pragma once

#include <cstdint>
#include <optional>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/http/client.h"
#include "common/http/types.h"
#include "services/cli/loadtest/arrivals.h"
#include "services/cli/loadtest/lengths.h"
#include "services/cli/loadtest/prompt_file.h"
#include "services/cli/loadtest/rate_search.h"
#include "services/cli/loadtest/slo.h"
#include "services/cli/loadtest/trace.h"
#include "services/cli/loadtest/workloads.h"

namespace lynx::loadtest {

// All that the command line says, checked.
struct Options {
  std::string base_url;  // Without a '/' at its end, with "/v1".
  std::string model;     // Empty: the server's first.
  Endpoint endpoint = Endpoint::kChat;
  http::Headers headers;  // With the API key.
  bool keep_alive = true;

  bool closed_loop = false;
  int64_t max_open = 0;
  ArrivalOptions arrivals;
  std::optional<Trace> trace;
  TraceOptions trace_options;
  std::optional<std::vector<Prompt>> prompts;
  Lengths input;
  Lengths output;
  int64_t prefix_tokens = 0;
  int64_t prefix_groups = 1;
  uint64_t seed = 0;

  int64_t warmup = 0;
  int64_t requests = 0;  // 0: no limit but kMaxRequests.
  absl::Duration duration = absl::InfiniteDuration();
  absl::Duration timeout;

  Slo slo;
  double attainment = 0.9;
  std::optional<RampPlan> ramp;
  double ramp_precision = 0.1;

  double temperature = 0;
  bool ignore_eos = true;
  bool include_usage = true;
  bool running_usage = false;
  std::string extra_body;

  std::string json;  // Files to write; empty for none.
  std::string html;
  std::string records;

  // Option and value, for reports; secrets are left out.
  std::vector<std::pair<std::string, std::string>> described;
};

// Parses and checks the command line and reads the files it names.
//   nullopt          --help or --version was printed to `out`.
//   InvalidArgument  names the flag and what it wants, or the place in a file.
//   NotFound         a file cannot be read, or the folder of one to write does not exist.
absl::StatusOr<std::optional<Options>> ParseOptions(int argc, const char* const* argv,
                                                    std::ostream& out);

}  // namespace lynx::loadtest
