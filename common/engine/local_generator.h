#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/dtype.h"
#include "common/engine/engine.h"
#include "common/engine/sampling_params.h"
#include "common/engine/sequence.h"

namespace lynx::engine {

struct GenerateRequest {
  std::vector<TokenId> prompt;
  SamplingParams params;
};

struct GenerateResult {
  absl::Status status;  // As ItemResult's.
  std::vector<SampledToken> output;
  std::vector<SampledToken> prompt_logprobs;
  FinishReason finish_reason = FinishReason::kNone;
};

struct GenerateOptions {
  int32_t max_context_tokens = 0;  // > 1
  int32_t max_chunk_tokens = 0;    // > 0; of a prompt, in one step.
  int32_t max_sequences = 0;       // > 0; running at once.
};

struct GenerateCounts {
  int64_t steps = 0;
  int64_t preemptions = 0;
};

// Runs requests to their end on one engine: chunked prompts and continuous batching, first come,
// first served, on the attention replica that has the fewest. When the blocks of one run out the
// sequence that started last there is preempted and recomputed.
//
// This is the whole of generation without a cluster: what a cluster's answers are compared with,
// and what benches and tools use.
//
//   InvalidArgument, OutOfRange  of a request, from Sequence::Create; names its index.
//   OutOfRange                   a request alone needs more blocks than a replica has.
//   other errors                 of Engine::Step.
// Pools are as full after as before, on errors too. One thread.
absl::StatusOr<std::vector<GenerateResult>> Generate(Engine& engine,
                                                     std::span<const GenerateRequest> requests,
                                                     const GenerateOptions& options,
                                                     GenerateCounts* counts = nullptr);

}  // namespace lynx::engine
