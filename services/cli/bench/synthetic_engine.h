#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "common/model/model_runner.h"
#include "common/model/model_spec.h"
#include "services/cli/bench/router_replay.h"
#include "services/cli/bench/router_traces.h"

namespace lynx::cli {

// An engine of random weights whose routers say what the traces say, which it borrows.
struct SyntheticEngine {
  std::unique_ptr<RouterReplay> replay;
  std::unique_ptr<model::ModelRunner> runner;
};

// Fails as SyntheticWeights and ModelRunner::Create do.
absl::StatusOr<SyntheticEngine> StartSyntheticEngine(const model::ModelSpec& spec,
                                                     model::RunnerOptions options,
                                                     RouterTraces traces, uint64_t seed);

}  // namespace lynx::cli
