#pragma once

#include <cstddef>
#include <cstdint>

#include "common/base/dtype.h"

namespace lynx::kernels {

inline constexpr int32_t kMaxSampleVocab = 1 << 20;
inline constexpr int32_t kMaxSampleTopK = 1024;

// How one row's token is drawn: what the sampler of common/engine makes of the same parameters.
struct SampleRow {
  uint64_t seed = 0;
  uint64_t position = 0;  // Of the token in its output.
  uint32_t choice_index = 0;
  float temperature = 1;  // 0: the largest logit, ties to the lowest id.
  int32_t top_k = 0;      // 0, or at least the vocabulary: all.
  float top_p = 1;        // Below 1 only with a top_k of at most kMaxSampleTopK.
  float min_p = 0;
};

// What stands in the place of a token.
inline constexpr TokenId kBrokenRow = -1;        // NaN or +Inf, or nothing above -Inf.
inline constexpr TokenId kNotOnThisDevice = -2;  // The row asks for what SampleRow does not allow.

// Draws a token of each row of logits, as they are: penalties, bias and masks are the caller's, and
// so are log-probabilities.
struct SampleArgs {
  const float* logits = nullptr;  // [rows, vocab], rows stride elements apart
  const SampleRow* rows = nullptr;
  TokenId* tokens = nullptr;  // [row_count]
  int64_t row_count = 0;      // [0, 65535]; 0 is a no-op
  int64_t vocab = 0;          // (0, kMaxSampleVocab]
  int64_t stride = 0;         // >= vocab
};

}  // namespace lynx::kernels
