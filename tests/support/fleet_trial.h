#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "tests/support/fake_model_runner.h"
#include "tests/support/fleet_workload.h"
#include "tests/support/sim_cluster.h"

namespace lynx::testing {

// How long steps take: a prefill step by its rows, a decode step by the experts that its batch
// reads, which is what makes it grow (lynx.md 2).
struct StepTimes {
  absl::Duration prefill_step = absl::Milliseconds(4);
  absl::Duration prefill_row = absl::Microseconds(50);
  absl::Duration decode_step = absl::Milliseconds(6);  // Dense weights, and all but experts.
  absl::Duration all_experts = absl::Milliseconds(24);
  double experts_per_row = 1.0 / 8;  // Share of all experts that one row reads.

  absl::Duration Of(const model::StepStats& stats) const;
};

struct FleetOptions {
  SimCluster::Options cluster;  // Without a model: trials run a chained FakeModelRunner.
  StepTimes times = {};
  // What a request is to meet to count for goodput.
  absl::Duration slo_ttft = absl::Seconds(1);
  absl::Duration slo_tpot = absl::Milliseconds(50);
  double cancel_share = 0;  // Of requests whose client leaves at a random time.
  uint64_t tenants = 1;     // Requests are of a random one of so many.
  uint64_t seed = 1;        // Of who leaves when, which router a request goes to, and whose it is.
};

struct FleetResult {
  int finished = 0;
  int cancelled = 0;
  int refused = 0;  // Told so at once or later.
  int failed = 0;
  int wrong = 0;      // Not the answer of the model alone.
  bool idle = false;  // Everything returned to rest.
  int met_slo = 0;
  double seconds = 0;             // Simulated, from the first arrival to the last end.
  std::vector<double> ttft = {};  // Seconds, of finished requests, ascending.
  std::vector<double> tpot = {};
  int64_t prompt_tokens = 0;  // Of prompts that got their first token,
  int64_t cached_tokens = 0;  // and of these those that were not computed.
  int64_t held_tokens = 0;    // Of adopted prompts, what decode held
  int64_t sent_tokens = 0;    // and what was sent.
  int64_t local_prefills = 0;
  int64_t preemptions = 0;   // On decode nodes,
  int64_t copied_bytes = 0;  // and what was copied because of them.
  uint64_t digest = 0;       // Of every event and its time: equal runs have equal ones.

  double goodput() const { return met_slo / seconds; }
};

// What the model of the trials answers.
std::vector<TokenId> FleetAnswer(const std::vector<TokenId>& prompt, int32_t tokens);

// Runs the trace through a simulated cluster until every request has ended and all is at rest, or
// ten simulated minutes after the last arrival.
FleetResult RunFleet(const FleetOptions& options, const std::vector<FleetRequest>& trace);

}  // namespace lynx::testing
