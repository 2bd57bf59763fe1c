#pragma once

#include <cstdint>
#include <ostream>
#include <string>
#include <vector>

namespace lynx::cli {

// What went through one process in the windows that were looked at.
struct StreamFigures {
  int64_t tokens = 0;
  double seconds = 0;
  double cpu_seconds = 0;  // Of that process, system calls included.
  double bytes_per_token = 0;
  double latency_ms_p50 = 0;  // From sending a token to receiving it.
  double latency_ms_p99 = 0;

  double tokens_per_s() const { return static_cast<double>(tokens) / seconds; }
  double tokens_per_cpu_s() const { return static_cast<double>(tokens) / cpu_seconds; }
};

struct RouterReport {
  int32_t streams = 0;
  double rate = 0;  // Tokens a second of each stream.
  int32_t batch = 0;
  std::vector<std::string> notes;
  StreamFigures router;
  StreamFigures echo;
};

void PrintRouterTable(const RouterReport& report, std::ostream& out);
void PrintRouterJson(const RouterReport& report, std::ostream& out);

}  // namespace lynx::cli
