#pragma once

#include <cstdint>

#include "services/cli/loadtest/answer.h"

namespace lynx::loadtest {

// What is kept of a request for the report. Times are in seconds since the start of the run; a
// negative one has not come to pass.
struct RequestRecord {
  double due_s = 0;          // When it should have been sent.
  double sent_s = -1;        // When it was.
  double first_s = -1;       // First token.
  double last_s = -1;        // Last token.
  double end_s = -1;         // [DONE], or the failure.
  int32_t wanted_input = 0;  // Tokens asked for; 0 where the prompt was given.
  int32_t wanted_output = 0;
  int32_t prompt_tokens = -1;  // As the server counted; -1 where it did not.
  int32_t cached_tokens = -1;
  int32_t output_tokens = 0;
  Outcome outcome = Outcome::kUnfinished;
  int16_t status = 0;           // Of HTTP; 0: no answer.
  float retry_after_s = -1;     // As the server asked; -1 where it did not.
  bool warmup = false;          // Sent, and left out of all figures.
  bool held_back = false;       // Due while as many as allowed were open.
  bool tokens_counted = false;  // output_tokens is the server's count.
  bool tokens_shared_out = false;

  bool ok() const { return outcome == Outcome::kOk; }
  bool has_tokens() const { return first_s >= 0; }
  double ttft_s() const { return first_s - sent_s; }
  double ttft_from_due_s() const { return first_s - due_s; }
  double e2e_s() const { return end_s - sent_s; }
  double e2e_from_due_s() const { return end_s - due_s; }
  bool has_tpot() const { return has_tokens() && output_tokens > 1; }
  double tpot_s() const { return (last_s - first_s) / (output_tokens - 1); }
};

}  // namespace lynx::loadtest
