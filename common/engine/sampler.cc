#include "common/engine/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/status_macros.h"
#include "kernels/sampling/philox.h"

namespace lynx::engine {
namespace {

// Best-first order is made in pieces of this size and up: a nucleus is mostly small.
constexpr size_t kFirstPiece = 256;

absl::Status CheckRow(const kernels::LogitsSummary& summary) {
  if (summary.valid) return absl::OkStatus();
  return absl::InternalError("logits contain NaN or +Inf, or only -Inf");
}

float Logprob(float logit, float max, double log_sum) {
  const double value = static_cast<double>(logit) - static_cast<double>(max) - log_sum;
  return std::max(static_cast<float>(value), kLogprobFloor);
}

}  // namespace

SamplerState::SamplerState(const SamplingParams& params, std::span<const TokenId> prompt)
    : tracks_output_(params.presence_penalty != 0 || params.frequency_penalty != 0 ||
                     params.repetition_penalty != 1) {
  if (params.repetition_penalty == 1) return;
  for (TokenId token : prompt) {
    if (index_.try_emplace(token, static_cast<int32_t>(seen_.size())).second) {
      seen_.push_back({token, 0});
    }
  }
}

void SamplerState::Append(TokenId token) {
  ++output_position_;
  if (!tracks_output_) return;
  const auto [it, is_new] = index_.try_emplace(token, static_cast<int32_t>(seen_.size()));
  if (is_new) seen_.push_back({token, 0});
  ++seen_[static_cast<size_t>(it->second)].in_output;
}

Sampler::Sampler(int32_t vocab_size)
    : vocab_size_(static_cast<size_t>(vocab_size)),
      edited_(vocab_size_),
      weights_(vocab_size_),
      partial_((vocab_size_ + kernels::kWeightBlock - 1) / kernels::kWeightBlock) {
  LYNX_CHECK(vocab_size > 0);
  candidates_.reserve(vocab_size_);
}

void Sampler::Edit(std::span<const float> row, const SamplingParams& params,
                   const SamplerState& state) {
  std::copy(row.begin(), row.end(), edited_.begin());
  for (const SamplerState::Seen& seen : state.seen_) {
    float& logit = edited_[static_cast<size_t>(seen.id)];
    logit = logit > 0 ? logit / params.repetition_penalty : logit * params.repetition_penalty;
    if (seen.in_output > 0) {
      logit -= params.frequency_penalty * static_cast<float>(seen.in_output);
      logit -= params.presence_penalty;
    }
  }
  for (const auto& [id, bias] : params.logit_bias) edited_[static_cast<size_t>(id)] += bias;
  if (state.output_position() < params.min_new_tokens) {
    for (TokenId id : params.stop_token_ids) {
      edited_[static_cast<size_t>(id)] = -std::numeric_limits<float>::infinity();
    }
  }
}

absl::Status Sampler::Sample(std::span<const float> row, const SamplingParams& params,
                             const SamplerState& state, SampledToken& out) {
  LYNX_CHECK(row.size() == vocab_size_);
  const kernels::LogitsSummary raw = kernels::SummarizeLogits(row);
  LYNX_RETURN_IF_ERROR(CheckRow(raw));

  kernels::LogitsSummary summary = raw;
  std::span<const float> logits = row;
  const bool masks_stop_ids =
      state.output_position() < params.min_new_tokens && !params.stop_token_ids.empty();
  if (!state.seen_.empty() || !params.logit_bias.empty() || masks_stop_ids) {
    Edit(row, params, state);
    logits = edited_;
    summary = kernels::SummarizeLogits(logits);
    if (!summary.valid) {
      return absl::InternalError("no token is left to sample after penalties, bias and masks");
    }
  }
  out.id = params.temperature == 0 ? summary.argmax
                                   : Draw(logits, summary.max, params, state.output_position());
  FillLogprobs(row, raw.max, params.top_logprobs, out);
  return absl::OkStatus();
}

absl::Status Sampler::Score(std::span<const float> row, TokenId token, int32_t top_logprobs,
                            SampledToken& out) {
  LYNX_CHECK(row.size() == vocab_size_);
  const kernels::LogitsSummary raw = kernels::SummarizeLogits(row);
  LYNX_RETURN_IF_ERROR(CheckRow(raw));
  out.id = token;
  FillLogprobs(row, raw.max, top_logprobs, out);
  return absl::OkStatus();
}

TokenId Sampler::Draw(std::span<const float> row, float max, const SamplingParams& params,
                      int64_t output_position) {
  const auto position = static_cast<uint64_t>(output_position);
  const std::array<uint32_t, 4> random = kernels::Philox4x32(
      {static_cast<uint32_t>(position), static_cast<uint32_t>(position >> 32), params.choice_index,
       0},
      {static_cast<uint32_t>(params.seed), static_cast<uint32_t>(params.seed >> 32)});
  const double uniform = kernels::UniformDouble(random[0], random[1]);

  const auto top_k = static_cast<size_t>(params.top_k);
  double total = 0;
  if (top_k > 0 && top_k < vocab_size_) {
    kernels::TopK(row, top_k, candidates_);
    for (kernels::Candidate& candidate : candidates_) {
      candidate.value = kernels::ExpNonPositive((candidate.value - max) / params.temperature);
      total += static_cast<double>(candidate.value);
    }
    return DrawFromCandidates(params.top_p, params.min_p, total, uniform);
  }
  // The likeliest token weighs 1, so min-p is a bound on the weight. Where top-p comes first it
  // must see the weights that min-p would drop.
  const bool nucleus = params.top_p < 1;
  kernels::ExpWeights(row, max, params.temperature, nucleus ? 0 : params.min_p, weights_, partial_);
  if (!nucleus) return DrawFromAll(uniform);

  for (double sum : partial_) total += sum;
  // Tokens below this weight together miss the last 1 - p, so the leading ones reach p without
  // them; the factor covers rounding.
  const double least =
      (1 - static_cast<double>(params.top_p)) * total * 0.99 / static_cast<double>(vocab_size_);
  candidates_.clear();
  for (size_t i = 0; i < vocab_size_; ++i) {
    if (static_cast<double>(weights_[i]) >= least) {
      candidates_.push_back({weights_[i], static_cast<TokenId>(i)});
    }
  }
  return DrawFromCandidates(params.top_p, params.min_p, total, uniform);
}

TokenId Sampler::DrawFromAll(double uniform) {
  double total = 0;
  for (double sum : partial_) total += sum;
  const double target = uniform * total;
  double before = 0;
  size_t block = 0;
  while (block + 1 < partial_.size() && before + partial_[block] <= target) {
    before += partial_[block++];
  }
  const size_t end = std::min((block + 1) * kernels::kWeightBlock, vocab_size_);
  for (size_t i = block * kernels::kWeightBlock; i < end; ++i) {
    if (weights_[i] == 0) continue;
    before += static_cast<double>(weights_[i]);
    if (before > target) return static_cast<TokenId>(i);
  }
  // Rounding: the block's sum was added in another order. Its last possible token, or, where a
  // block of nothing but zeros was left over at the end, the last of the row.
  size_t last = end;
  while (weights_[last - 1] == 0) --last;
  return static_cast<TokenId>(last - 1);
}

TokenId Sampler::DrawFromCandidates(float top_p, float min_p, double total, double uniform) {
  // Sorts best first only as far as the nucleus reaches. After TopK() everything is sorted already,
  // and costs little to sort again.
  size_t kept = 0;
  double kept_sum = 0;
  const double enough =
      top_p < 1 ? static_cast<double>(top_p) * total : std::numeric_limits<double>::infinity();
  for (size_t sorted = 0, piece = kFirstPiece; kept == sorted && sorted < candidates_.size();
       piece *= 4) {
    const size_t end = std::min(sorted + piece, candidates_.size());
    const auto first = candidates_.begin() + static_cast<ptrdiff_t>(sorted);
    const auto last = candidates_.begin() + static_cast<ptrdiff_t>(end);
    if (end < candidates_.size()) {
      std::nth_element(first, last, candidates_.end(), kernels::Better);
    }
    std::sort(first, last, kernels::Better);
    for (; kept < end && kept_sum < enough && candidates_[kept].value >= min_p; ++kept) {
      kept_sum += static_cast<double>(candidates_[kept].value);
    }
    sorted = end;
  }
  const double target = uniform * kept_sum;
  double before = 0;
  size_t chosen = 0;
  for (size_t i = 0; i < kept && candidates_[i].value > 0; ++i) {
    chosen = i;
    before += static_cast<double>(candidates_[i].value);
    if (before > target) break;
  }
  return candidates_[chosen].id;
}

void Sampler::FillLogprobs(std::span<const float> row, float max, int32_t top_logprobs,
                           SampledToken& out) {
  out.has_logprob = top_logprobs != kNoLogprobs;
  out.logprob = 0;
  out.top.clear();
  if (!out.has_logprob) return;
  const double log_sum = std::log(kernels::SumExp(row, max));
  out.logprob = Logprob(row[static_cast<size_t>(out.id)], max, log_sum);
  if (top_logprobs == 0) return;
  kernels::TopK(row, static_cast<size_t>(top_logprobs), candidates_);
  for (const kernels::Candidate& candidate : candidates_) {
    out.top.push_back({candidate.id, Logprob(candidate.value, max, log_sum)});
  }
}

}  // namespace lynx::engine
