#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "common/moe/policy.h"
#include "services/cli/eval/eval_data.h"
#include "services/cli/eval/prefilled_prompts.h"
#include "services/cli/eval/progress.h"
#include "services/cli/eval/routing_tally.h"

namespace lynx::cli {

struct TextEvalOptions {
  int32_t batch = 0;      // > 0; at most as many as there are windows.
  int32_t context = 0;    // >= 0: tokens of each window that are its prompt.
  int32_t positions = 0;  // > 0: decode steps behind it.
  // Every step reads exact KV instead of what the policy's own earlier steps left.
  bool exact_kv = false;
};

// One window under one policy: means over its positions.
struct WindowScore {
  double nll_exact = 0;  // Of the text's next token, nats.
  double nll = 0;
  double kl = 0;         // KL(exact || policy) of the next token's distribution, nats.
  double agreement = 0;  // Share of positions with the same most likely token.
};

struct TextRun {
  RoutingTally routing;
  std::vector<WindowScore> windows;  // As TextSet::windows.
};

// Decodes the text itself, not what the model would say: at each position the window's own token
// goes in, and the distribution of the next one is compared with that of an exact decode of the
// same tokens over exact KV. One run per policy.
//
// Every step has exactly `batch` rows, of as many windows at the same position. When the windows do
// not fill the last batch, earlier ones join it again, whose scores count once.
//
//   InvalidArgument    the options do not fit the windows, or would need too much memory.
//   ResourceExhausted  the KV pool cannot hold a batch.
absl::StatusOr<std::vector<TextRun>> RunTexts(const EvalModel& model, const TextSet& texts,
                                              const TextEvalOptions& options,
                                              std::span<const moe::Policy> policies,
                                              Progress& progress);

}  // namespace lynx::cli
