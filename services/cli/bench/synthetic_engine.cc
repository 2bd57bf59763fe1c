#include "services/cli/bench/synthetic_engine.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "services/cli/bench/synthetic_weights.h"

namespace lynx::cli {

absl::StatusOr<SyntheticEngine> StartSyntheticEngine(const model::ModelSpec& spec,
                                                     model::RunnerOptions options,
                                                     RouterTraces traces, uint64_t seed) {
  SyntheticEngine engine;
  engine.replay = std::make_unique<RouterReplay>(std::move(traces));
  LYNX_ASSIGN_OR_RETURN(const SyntheticWeights weights, SyntheticWeights::Create(spec, seed));
  options.router_override = engine.replay.get();
  LYNX_ASSIGN_OR_RETURN(engine.runner,
                        model::ModelRunner::Create(options, spec, weights.tensors(),
                                                   absl::StrCat("synthetic-", seed)));
  return engine;
}

}  // namespace lynx::cli
