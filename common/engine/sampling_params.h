#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "common/base/dtype.h"

namespace lynx::engine {

inline constexpr int32_t kMaxTopLogprobs = 20;
inline constexpr int32_t kNoLogprobs = -1;

// Everything that decides which token comes next, given the tokens so far; the engine's form of
// the wire message of that name. Sampler says how the fields combine.
struct SamplingParams {
  float temperature = 1;                                   // >= 0; 0 is greedy.
  float top_p = 1;                                         // (0, 1]; 1 keeps all.
  int32_t top_k = 0;                                       // >= 0; 0 keeps all.
  float min_p = 0;                                         // [0, 1]
  float presence_penalty = 0;                              // [-2, 2]
  float frequency_penalty = 0;                             // [-2, 2]
  float repetition_penalty = 1;                            // [0.01, 100]; 1 is none.
  std::vector<std::pair<TokenId, float>> logit_bias = {};  // Added; values in [-100, 100].
  uint64_t seed = 0;
  uint32_t choice_index = 0;
  int32_t max_new_tokens = 1;                // > 0
  int32_t min_new_tokens = 0;                // [0, max_new_tokens]
  std::vector<TokenId> stop_token_ids = {};  // End the sequence, once min_new_tokens are there.
  int32_t top_logprobs = kNoLogprobs;        // 0: the chosen token's only; else that many as well.
  bool prompt_logprobs = false;              // Log-probabilities of the prompt's own tokens too.
};

// InvalidArgument names the field, its value and what is allowed; token ids must be in
// [0, vocab_size).
absl::Status Validate(const SamplingParams& params, int32_t vocab_size);

}  // namespace lynx::engine
