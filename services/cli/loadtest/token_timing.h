#pragma once

#include <cstdint>
#include <optional>

#include "absl/time/time.h"
#include "services/cli/loadtest/answer.h"
#include "services/cli/loadtest/statistics.h"

namespace lynx::loadtest {

// When the tokens of one answer came.
struct TokenTiming {
  std::optional<absl::Time> first;
  std::optional<absl::Time> last;
  int64_t tokens = 0;       // As usage says; pieces of text where there is no usage.
  bool from_usage = false;  // The server counted them.
  // The server did not say how many tokens each piece brought, and they are not one each: they were
  // shared out by length of text.
  bool shared_out = false;
};

// Gaps between tokens, in seconds, over all answers.
struct GapHistograms {
  // One for each token after the first. A piece of n tokens, g after the piece before, gives n gaps
  // of g / n (the first piece gives n - 1 gaps of 0): so an answer's gaps add up to the time from
  // its first token to its last, and their mean is its TPOT.
  LogHistogram tokens;
  // One for each piece after the first: what a reader sees as a stall.
  LogHistogram pieces;
};

// Adds the answer's gaps to `gaps` unless that is null. An empty last piece with a finish_reason
// counts as a token only where usage counts more tokens than pieces with text (an end-of-text
// token).
TokenTiming AccountTokens(const Answer& answer, GapHistograms* gaps);

}  // namespace lynx::loadtest
