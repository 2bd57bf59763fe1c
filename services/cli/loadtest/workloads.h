#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "services/cli/loadtest/arrivals.h"
#include "services/cli/loadtest/lengths.h"
#include "services/cli/loadtest/prompt_file.h"
#include "services/cli/loadtest/prompt_text.h"
#include "services/cli/loadtest/request_body.h"
#include "services/cli/loadtest/trace.h"
#include "services/cli/loadtest/workload.h"

namespace lynx::loadtest {

// When requests are due, for workloads that no trace tells.
struct ArrivalOptions {
  ArrivalProcess process = ArrivalProcess::kPoisson;
  double rate = 1;
  double burstiness = 1;
};

struct SyntheticOptions {
  ArrivalOptions arrivals;
  Lengths input;
  Lengths output;
  int64_t prefix_tokens = 0;  // Of every prompt: its start, shared with others of its group.
  int64_t prefix_groups = 1;  // How many different starts there are; drawn at random. > 0.
  TokenScale scale;
  uint64_t seed = 0;
};

// Prompts of random words, each its own but for the shared start.
std::unique_ptr<Workload> MakeSyntheticWorkload(const SyntheticOptions& options,
                                                const RequestBody& body);

// Given prompts in turn, from the first again after the last. Those without max_tokens take
// `output`.
std::unique_ptr<Workload> MakePromptWorkload(const ArrivalOptions& arrivals,
                                             std::vector<Prompt> prompts, const Lengths& output,
                                             uint64_t seed, const RequestBody& body);

struct TraceOptions {
  double speed = 1;            // 2: in half the time.
  double length_scale = 1;     // Of input, output and blocks alike.
  int64_t block_tokens = 512;  // Of one hash id.
  TokenScale scale;
  uint64_t seed = 0;
};

// Replays a trace once. Prompts with equal hash ids at their start begin with the same words, block
// by block; what no hash id covers is the prompt's own.
std::unique_ptr<Workload> MakeTraceWorkload(const TraceOptions& options, Trace trace,
                                            const RequestBody& body);

}  // namespace lynx::loadtest
