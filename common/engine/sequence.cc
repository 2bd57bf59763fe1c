#include "common/engine/sequence.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/status_macros.h"

namespace lynx::engine {
namespace {

absl::Status CheckTokens(const char* what, std::span<const TokenId> tokens, int32_t vocab_size) {
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (tokens[i] < 0 || tokens[i] >= vocab_size) {
      return absl::InvalidArgumentError(absl::StrCat(what, " token ", i, " is ", tokens[i],
                                                     ", the vocabulary is [0, ", vocab_size, ")"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<Sequence>> Sequence::Create(std::vector<TokenId> prompt,
                                                           SamplingParams params,
                                                           const Limits& limits,
                                                           std::span<const TokenId> output) {
  if (prompt.empty()) return absl::InvalidArgumentError("prompt is empty");
  if (prompt.size() >= static_cast<size_t>(limits.max_context_tokens)) {
    return absl::OutOfRangeError(
        absl::StrCat("prompt has ", prompt.size(), " tokens, the context holds ",
                     limits.max_context_tokens, " with at least one new token"));
  }
  LYNX_RETURN_IF_ERROR(CheckTokens("prompt", prompt, limits.vocab_size));
  LYNX_RETURN_IF_ERROR(CheckTokens("output", output, limits.vocab_size));
  LYNX_RETURN_IF_ERROR(Validate(params, limits.vocab_size));
  std::unique_ptr<Sequence> sequence(new Sequence(std::move(prompt), std::move(params), limits));
  for (TokenId token : output) {
    if (sequence->finished()) {
      return absl::InvalidArgumentError(absl::StrCat("output goes on after token ",
                                                     sequence->output().size() - 1,
                                                     ", which ends the sequence"));
    }
    sequence->Append(token);
  }
  // The prompt's log-probabilities were reported with the first token.
  if (!output.empty()) {
    sequence->scored_rows_ = static_cast<int32_t>(sequence->prompt_tokens_) - 1;
  }
  return sequence;
}

Sequence::Sequence(std::vector<TokenId> prompt, SamplingParams params, const Limits& limits)
    : params_(std::move(params)),
      limits_(limits),
      prompt_tokens_(prompt.size()),
      tokens_(std::move(prompt)),
      sampler_state_(params_, tokens_) {}

Sequence::~Sequence() { LYNX_CHECK_MSG(!in_step_, "sequence destroyed inside a step"); }

void Sequence::PlaceOn(int32_t replica) {
  LYNX_CHECK_MSG(!in_step_ && blocks_.empty(), "sequence holds blocks of a replica already");
  LYNX_CHECK(replica >= 0);
  replica_ = replica;
}

absl::Status Sequence::EnsureBlocks(kv::BlockPool& pool, int64_t tokens) {
  LYNX_CHECK_MSG(!in_step_, "blocks changed inside a step");
  blocks_.ReleaseBefore(computed_tokens_);
  const absl::Status extended = blocks_.Extend(pool, tokens);
  if (tokens > reserved_tokens_) {
    reserved_tokens_ = 0;
    blocks_.ReleaseSpare();
  }
  return extended;
}

absl::Status Sequence::ReserveBlocks(kv::BlockPool& pool, int64_t tokens, int32_t step_rows) {
  LYNX_CHECK_MSG(!in_step_, "blocks changed inside a step");
  LYNX_RETURN_IF_ERROR(blocks_.Reserve(
      pool, pool.groups().MostBlocks(tokens, step_rows) + blocks_.shared_in_windows()));
  reserved_tokens_ = tokens;
  return absl::OkStatus();
}

void Sequence::ReleaseUnneeded() {
  LYNX_CHECK_MSG(!in_step_, "blocks changed inside a step");
  blocks_.ReleaseBefore(computed_tokens_);
  blocks_.ReleaseSpare();
  reserved_tokens_ = 0;
}

void Sequence::AdoptKv(kv::BlockTable blocks, int32_t computed_tokens) {
  LYNX_CHECK_MSG(!in_step_ && blocks_.empty(), "sequence holds blocks already");
  LYNX_CHECK(computed_tokens >= 0 && computed_tokens < static_cast<int32_t>(tokens_.size()) &&
             blocks.capacity_tokens() >= computed_tokens);
  blocks_ = std::move(blocks);
  computed_tokens_ = computed_tokens;
}

void Sequence::Preempt() { TakeBlocks().Reset(); }

kv::BlockTable Sequence::TakeBlocks() {
  LYNX_CHECK_MSG(!in_step_, "blocks taken inside a step");
  computed_tokens_ = 0;
  reserved_tokens_ = 0;
  return std::exchange(blocks_, kv::BlockTable());
}

void Sequence::Append(TokenId token) {
  tokens_.push_back(token);
  sampler_state_.Append(token);
  const auto new_tokens = static_cast<int32_t>(output().size());
  const auto& stops = params_.stop_token_ids;
  if (new_tokens > params_.min_new_tokens &&
      std::find(stops.begin(), stops.end(), token) != stops.end()) {
    finish_reason_ = FinishReason::kStop;
  } else if (new_tokens >= params_.max_new_tokens ||
             static_cast<int32_t>(tokens_.size()) >= limits_.max_context_tokens) {
    finish_reason_ = FinishReason::kLength;
  }
}

}  // namespace lynx::engine
