#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "services/cli/loadtest/prompt_file.h"

namespace lynx::loadtest {

// Writes the JSON bodies of requests.
class RequestBody {
 public:
  struct Options {
    Endpoint endpoint = Endpoint::kChat;
    std::string model;
    double temperature = 0;
    bool ignore_eos = true;      // Answers of exactly the wanted length, where the server can.
    bool include_usage = true;   // Token counts at the end of a stream.
    bool running_usage = false;  // And with each piece (vLLM, SGLang).
    std::string extra;           // A JSON object whose members are added; may be empty.
  };

  // InvalidArgument: `extra` is no JSON object.
  static absl::StatusOr<RequestBody> Create(const Options& options);

  // A streamed request for up to `max_tokens`.
  std::string Streamed(const Prompt& prompt, int32_t max_tokens) const;
  // One that is answered at once, with a single token.
  std::string Whole(const Prompt& prompt) const;

  Endpoint endpoint() const { return options_.endpoint; }

 private:
  explicit RequestBody(Options options) : options_(std::move(options)) {}

  Options options_;
  std::string start_;  // Up to the prompt.
  std::string extra_;  // ",\"name\":value..." of the extra members.
};

}  // namespace lynx::loadtest
