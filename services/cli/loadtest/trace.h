#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace lynx::loadtest {

// One request of a recorded trace.
struct TraceRequest {
  absl::Duration at;  // After the first request of the trace.
  int64_t input_tokens = 0;
  int64_t output_tokens = 0;
  // Mooncake: one for each block of the prompt; two requests share a prompt's start exactly as far
  // as these agree. Empty where the format knows none.
  std::vector<uint64_t> hash_ids;
};

enum class TraceFormat {
  kAuto,      // By the first line.
  kMooncake,  // JSONL: timestamp (ms), input_length, output_length, hash_ids (optional).
  kAzure,     // CSV: TIMESTAMP, ContextTokens, GeneratedTokens.
  kBurstGpt,  // CSV: Timestamp (s), ..., Request tokens, Response tokens, ...
};

struct Trace {
  TraceFormat format = TraceFormat::kAuto;
  std::vector<TraceRequest> requests;  // By time; of equal times in the order of the file.
  int64_t without_answer = 0;  // Requests of no output tokens: they failed when recorded; left out.
};

// Reads a trace. Columns of a CSV are found by the names in its first line, so others may be there.
//   InvalidArgument  a malformed line, or no request; names `file`, line and column (in bytes).
absl::StatusOr<Trace> ParseTrace(std::string_view text, const std::string& file,
                                 TraceFormat format);

std::string_view TraceFormatName(TraceFormat format);

}  // namespace lynx::loadtest
