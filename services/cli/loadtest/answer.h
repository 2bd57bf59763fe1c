#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"

namespace lynx::loadtest {

// How a request ended. One word each, in reports and JSON.
enum class Outcome {
  kOk,          // Status 200 and a stream up to [DONE].
  kHttpStatus,  // Another status than 200 and 429.
  kRefused,     // 429: the server said "not now".
  kTimeout,     // Not over within the limit for a request.
  kConnection,  // No connection, or none any more before an answer began.
  kCut,         // The stream ended without [DONE].
  kErrorEvent,  // An error object within the stream.
  kProtocol,    // Not HTTP, not an event stream, not JSON, or out of all bounds.
  kUnfinished,  // Ours: still open when the run was broken off. No fault of the server.
  kUnsent,      // Ours: due within the run, and never sent, as too many were open.
};
inline constexpr int kOutcomes = 10;

const char* OutcomeName(Outcome outcome);

// One piece of an answer that brought tokens.
struct Chunk {
  absl::Time at;
  int32_t text_bytes = 0;
  int32_t tokens_so_far = -1;  // As the server's running usage says; -1 where it says nothing.
};

// What one request brought, as far as it came.
struct Answer {
  Outcome outcome = Outcome::kUnfinished;
  int status = 0;                             // 0: no HTTP answer.
  std::optional<absl::Duration> retry_after;  // Of a 429 or 503.
  std::string problem;  // In words, from the server where it sent some; empty when kOk.

  std::vector<Chunk> chunks;      // Times ascend.
  std::optional<absl::Time> end;  // [DONE], or what broke it off.
  std::optional<int64_t> prompt_tokens;
  std::optional<int64_t> completion_tokens;
  std::optional<int64_t> cached_tokens;  // Of the prompt, held by the server already.
};

}  // namespace lynx::loadtest
