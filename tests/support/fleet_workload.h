#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "absl/time/time.h"
#include "common/base/dtype.h"

namespace lynx::testing {

// One request of a made trace.
struct FleetRequest {
  absl::Duration arrival;  // From the trace's start.
  std::vector<TokenId> prompt;
  int32_t output_tokens = 0;
};

// Conversations as in the Mooncake traces (FAST 2025: 12,035 tokens in and 343 out on average),
// with lengths scaled down: every conversation starts with one of a few long system prompts, and
// each turn repeats all before it, so that most of a prompt is a prefix of an earlier request.
struct ConversationOptions {
  uint64_t seed = 1;
  int32_t requests = 1000;
  double requests_per_second = 10;
  // Shape of the gamma distribution of the gaps: 1 is Poisson, less is burstier.
  double burstiness = 1;
  int32_t vocab_size = 97;
  int32_t system_prompts = 8;
  int32_t system_tokens = 256;
  int32_t turn_tokens = 96;       // Mean of what a turn adds; exponential.
  int32_t output_tokens = 24;     // Mean of an answer; exponential, from 2.
  int32_t context_tokens = 1500;  // A conversation that would outgrow this ends.
  // What the model answers, which the next turn repeats; null: anything of that length.
  std::function<std::vector<TokenId>(const std::vector<TokenId>& prompt, int32_t tokens)> answer =
      nullptr;
};

// In order of arrival; a pure function of the options.
std::vector<FleetRequest> MakeConversations(const ConversationOptions& options);

}  // namespace lynx::testing
