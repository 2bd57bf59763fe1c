#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "services/cli/loadtest/load_driver.h"
#include "services/cli/loadtest/request_record.h"
#include "services/cli/loadtest/slo.h"
#include "services/cli/loadtest/statistics.h"

namespace lynx::loadtest {

// What the load generator itself cost: whether its figures can be believed.
struct ClientCost {
  double wall_s = 0;
  double cpu_s = 0;
  double longest_turn_s = 0;  // No time stamp is later than this.
  uint64_t connections = 0;
  uint64_t resent = 0;
};

// One run in figures. Times in seconds. Unless said otherwise, of measured requests (not warm-up)
// that succeeded.
struct RunResult {
  double asked_rate = 0;  // Requests a second; 0 where there was none (closed loop, trace).

  int64_t warmup = 0;
  int64_t measured = 0;                       // All that were due: with failed and unsent ones.
  std::array<int64_t, kOutcomes> outcomes{};  // By Outcome, summing up to `measured`.
  std::map<int, int64_t> statuses;            // Of kHttpStatus.
  std::map<std::pair<Outcome, std::string>, int64_t> problems;  // In words; warm-up included.
  int64_t held_back = 0;       // Sent late, since as many as allowed were open.
  int64_t most_open = 0;       // Requests open at the same time, warm-up included.
  int64_t uncounted = 0;       // Successes whose tokens the server did not count.
  int64_t shared_out = 0;      // Successes whose pieces' tokens are estimates.
  int64_t without_tokens = 0;  // Successes that brought none.

  double window_s = 0;      // From the first request due to the last end.
  double due_rate = 0;      // Requests due a second, while there were any due.
  double request_rate = 0;  // Successes a second of the window.
  double input_token_rate = 0;
  double output_token_rate = 0;

  Summary ttft;  // From sending to the first token.
  Summary ttft_from_due;
  Summary tpot;
  Summary itl;         // Between tokens.
  Summary piece_gaps;  // Between pieces of an answer.
  Summary e2e;         // From sending to [DONE].
  Summary e2e_from_due;
  Summary send_delay;  // From due to sent, of all that were sent.
  Summary prompt_tokens;
  Summary output_tokens;
  Summary prompt_error;  // (counted - wanted) / wanted, of prompts.
  Summary output_error;
  Summary retry_after;                 // As servers asked, of all requests.
  std::optional<double> cached_share;  // Of prompt tokens, where the server says.

  // Of the measured requests without unfinished ones: failed and unsent ones have met nothing.
  bool has_slo = false;
  double attainment = 0;
  std::map<std::string, double> attainment_by_limit;
  double goodput = 0;  // Requests a second of the window that met every limit.

  ClientCost client;
  std::vector<RequestRecord> records;  // All, for charts.
  GapHistograms gaps;

  int64_t ok() const { return outcomes[static_cast<size_t>(Outcome::kOk)]; }
};

RunResult MakeRunResult(RunLog log, const Slo& slo, const ClientCost& client);

}  // namespace lynx::loadtest
