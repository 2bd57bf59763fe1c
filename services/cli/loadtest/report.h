#pragma once

#include <optional>
#include <ostream>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "services/cli/loadtest/run_result.h"
#include "services/cli/loadtest/slo.h"

namespace lynx::loadtest {

// What all runs of a load test have in common.
struct TestSetup {
  std::string url;
  std::string model;
  std::string started_at;  // Wall time, RFC 3339.
  uint64_t seed = 0;
  std::string load;  // "open loop, poisson, 4 requests/s", in words.
  Slo slo;
  double attainment = 0.9;
  double tokens_per_word = 0;  // As the server counts made-up prompts; 0 where none were made.
  std::vector<std::pair<std::string, std::string>> options;
};

// A whole load test: one run, or those of a ramp in the order in which they were made.
struct TestReport {
  TestSetup setup;
  std::vector<RunResult> runs;
  bool ramp = false;
  std::optional<double> capacity;       // Of a ramp: the highest rate that held.
  std::optional<double> lowest_failed;  // Of a ramp.
  bool broken_off = false;              // By the user.
};

// What should make a reader doubt a run's figures, or the server.
struct Warning {
  std::string key;   // One word for its kind.
  std::string text;  // Without a full stop.
};
std::vector<Warning> Warnings(const RunResult& run);

// The runs of a ramp from the lowest rate to the highest.
std::vector<const RunResult*> ByRate(const TestReport& report);

void PrintReport(const TestReport& report, std::ostream& out);

// The document of --json; docs/loadtest.md describes it.
std::string ToJson(const TestReport& report);

// One line for each request of each run, as JSON (--records).
std::string RecordsToJsonl(const TestReport& report);

// One HTML page that needs nothing but itself (--html).
std::string ToHtml(const TestReport& report);

}  // namespace lynx::loadtest
