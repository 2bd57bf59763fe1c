#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "common/base/dtype.h"
#include "common/engine/sampling_params.h"
#include "kernels/sampling/logits.h"

namespace lynx::engine {

// Log-probabilities are never below this, -Inf included, so that every number we report is finite
// and every answer is valid JSON. The value is the one vLLM reports for the same purpose.
inline constexpr float kLogprobFloor = -9999.0f;

struct TopLogprob {
  TokenId id = 0;
  float logprob = 0;
  friend bool operator==(const TopLogprob&, const TopLogprob&) = default;
};

struct SampledToken {
  TokenId id = 0;
  bool has_logprob = false;
  float logprob = 0;            // Meaningful when has_logprob.
  std::vector<TopLogprob> top;  // Best first, ties by lower id.
  friend bool operator==(const SampledToken&, const SampledToken&) = default;
};

// What a sequence's past means to the sampler. A function of (params, prompt, output so far) and
// nothing else: a node that takes a sequence over rebuilds it from these.
class SamplerState {
 public:
  SamplerState(const SamplingParams& params, std::span<const TokenId> prompt);

  // The next output token.
  void Append(TokenId token);

  // Of the token to be sampled next; the first is 0.
  int64_t output_position() const { return output_position_; }

 private:
  friend class Sampler;
  struct Seen {
    TokenId id;
    int32_t in_output;  // Times; 0 for a token of the prompt only.
  };
  bool tracks_output_;
  int64_t output_position_ = 0;
  // Distinct tokens that a penalty applies to, and where each is: both empty without penalties.
  std::vector<Seen> seen_;
  absl::flat_hash_map<TokenId, int32_t> index_;
};

// Chooses the next token from a row of logits.
//
// The choice is a pure function of (row, params, state): the random number is Philox keyed by
// (seed, choice index, output position). So the same token comes at a position whatever the batch
// and the node, and after a failover.
//
// Order, each step working on the result of the one before:
//   1. repetition penalty, over prompt and output: l > 0 ? l / r : l * r (Hugging Face);
//   2. frequency and presence penalty, over the output: l - f * count - p * (count > 0) (OpenAI);
//   3. logit bias: l + b;
//   4. stop ids become -Inf before min_new_tokens: after the bias, which must not revive them;
//   5. temperature 0: the largest, ties to the lowest id. Otherwise l / temperature;
//   6. top-k: the k largest, ties to lower ids;
//   7. top-p: of what top-k left, renormalised, the smallest leading set that reaches p;
//   8. min-p: drops what is less likely than min_p times the likeliest.
// This is the order of Hugging Face transformers' warpers. vLLM has min-p before top-p, which
// differs only when both are set: top-p then renormalises over fewer tokens.
//
// Log-probabilities are of the raw row, before step 1 (OpenAI, vLLM's default): what the model
// thinks, not what the request forced.
//
// Holds scratch memory only, allocated once: one Sampler per thread, any number of sequences.
class Sampler {
 public:
  explicit Sampler(int32_t vocab_size);  // > 0

  // Sets `out` (its capacity is reused). `row` is float32 [vocab_size].
  //   Internal  NaN or +Inf in the row, or no token left with a finite logit: the model's answer is
  //             broken, and so is this sequence. `out` is unspecified.
  absl::Status Sample(std::span<const float> row, const SamplingParams& params,
                      const SamplerState& state, SampledToken& out);

  // Log-probabilities for a token that was not sampled, one of the prompt. Internal as above.
  absl::Status Score(std::span<const float> row, TokenId token, int32_t top_logprobs,
                     SampledToken& out);

 private:
  void Edit(std::span<const float> row, const SamplingParams& params, const SamplerState& state);
  TokenId Draw(std::span<const float> row, float max, const SamplingParams& params,
               int64_t output_position);
  TokenId DrawFromAll(double uniform);
  TokenId DrawFromCandidates(float top_p, float min_p, double total, double uniform);
  void FillLogprobs(std::span<const float> row, float max, int32_t top_logprobs, SampledToken& out);

  const size_t vocab_size_;
  std::vector<float> edited_;    // [vocab_size]
  std::vector<float> weights_;   // [vocab_size]
  std::vector<double> partial_;  // Sums of kernels::kWeightBlock weights.
  std::vector<kernels::Candidate> candidates_;
};

}  // namespace lynx::engine
