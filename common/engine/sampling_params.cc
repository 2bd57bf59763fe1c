#include "common/engine/sampling_params.h"

#include <string>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace lynx::engine {
namespace {

// `ok` is computed so that NaN fails it.
template <typename T>
absl::Status Check(bool ok, const char* field, T value, const char* allowed) {
  if (ok) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(field, " is ", value, ", must be ", allowed));
}

absl::Status CheckId(const char* field, TokenId id, int32_t vocab_size) {
  if (id >= 0 && id < vocab_size) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(field, " has token id ", id, ", the vocabulary is [0, ", vocab_size, ")"));
}

}  // namespace

absl::Status Validate(const SamplingParams& p, int32_t vocab_size) {
  LYNX_RETURN_IF_ERROR(Check(p.temperature >= 0 && p.temperature <= 100, "temperature",
                             p.temperature, "in [0, 100]"));
  LYNX_RETURN_IF_ERROR(Check(p.top_p > 0 && p.top_p <= 1, "top_p", p.top_p, "in (0, 1]"));
  LYNX_RETURN_IF_ERROR(Check(p.top_k >= 0, "top_k", p.top_k, ">= 0"));
  LYNX_RETURN_IF_ERROR(Check(p.min_p >= 0 && p.min_p <= 1, "min_p", p.min_p, "in [0, 1]"));
  LYNX_RETURN_IF_ERROR(Check(p.presence_penalty >= -2 && p.presence_penalty <= 2,
                             "presence_penalty", p.presence_penalty, "in [-2, 2]"));
  LYNX_RETURN_IF_ERROR(Check(p.frequency_penalty >= -2 && p.frequency_penalty <= 2,
                             "frequency_penalty", p.frequency_penalty, "in [-2, 2]"));
  LYNX_RETURN_IF_ERROR(Check(p.repetition_penalty >= 0.01f && p.repetition_penalty <= 100,
                             "repetition_penalty", p.repetition_penalty, "in [0.01, 100]"));
  for (const auto& [id, bias] : p.logit_bias) {
    LYNX_RETURN_IF_ERROR(CheckId("logit_bias", id, vocab_size));
    LYNX_RETURN_IF_ERROR(Check(bias >= -100 && bias <= 100, "logit_bias", bias, "in [-100, 100]"));
  }
  LYNX_RETURN_IF_ERROR(Check(p.max_new_tokens > 0, "max_new_tokens", p.max_new_tokens, "> 0"));
  LYNX_RETURN_IF_ERROR(Check(p.min_new_tokens >= 0 && p.min_new_tokens <= p.max_new_tokens,
                             "min_new_tokens", p.min_new_tokens, "in [0, max_new_tokens]"));
  for (TokenId id : p.stop_token_ids) {
    LYNX_RETURN_IF_ERROR(CheckId("stop_token_ids", id, vocab_size));
  }
  return Check(p.top_logprobs >= kNoLogprobs && p.top_logprobs <= kMaxTopLogprobs, "top_logprobs",
               p.top_logprobs, "in [-1, 20]");
}

}  // namespace lynx::engine
