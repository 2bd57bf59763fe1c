#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "common/kv/block_pool.h"
#include "common/kv/block_table.h"
#include "common/model/model_runner.h"
#include "services/cli/bench/synthetic_engine.h"
#include "services/cli/bench/transfer/prefill_side.h"
#include "services/cli/bench/transfer/transfer_report.h"

namespace lynx::cli {

// Computes prompts on a synthetic engine, alone and while their KV goes out.
class Overlap {
 public:
  struct Options {
    model::RunnerOptions runner;  // kv_blocks, rows and logits are set here.
    int32_t tokens = 0;
    int32_t chunk = 0;
    uint64_t seed = 1;
  };

  // Fails as StartSyntheticEngine does; ResourceExhausted before anything is allocated when the
  // machine's memory does not suffice.
  static absl::StatusOr<std::unique_ptr<Overlap>> Create(const Options& options,
                                                         const model::ModelSpec& spec,
                                                         RouterTraces traces);

  kv::KvArena& arena() { return engine_.runner->kv(); }
  const kv::BlockTable& blocks() const { return blocks_; }

  // One round: the prompt alone, its KV alone, the prompt with its KV. `side` sends from arena().
  absl::StatusOr<OverlapResult> Measure(PrefillSide& side);

 private:
  Overlap(const Options& options, SyntheticEngine engine, int32_t kv_blocks);
  // Sends to `side` unless it is null. When the last layer was computed.
  absl::StatusOr<absl::Time> Compute(PrefillSide* side);

  const Options options_;
  const SyntheticEngine engine_;
  std::vector<TokenId> prompt_;
  kv::BlockPool pool_;
  kv::BlockTable blocks_;
};

}  // namespace lynx::cli
