#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/dtype.h"

// The arithmetic of `lynx eval`: pure functions.
namespace lynx::cli {

// A mean and its standard error.
struct Estimate {
  double mean = 0;
  double error = 0;
};

// Of independent values. No value gives 0; a single one has no error that could be known: 0.
Estimate EstimateMean(std::span<const double> values);

// Mean of independent estimates, each counting the same.
Estimate AverageOf(std::span<const Estimate> estimates);

// A row of logits seen as a distribution of the next token.
struct NextToken {
  double log_sum = 0;  // log of the sum of exp(logit).
  TokenId top = 0;     // The most likely token; ties go to the lower id.
};

// Internal: NaN or +Inf among the logits, or none finite.
absl::StatusOr<NextToken> Summarise(std::span<const float> logits);

// -log p(token), nats.
double NegativeLogLikelihood(std::span<const float> logits, const NextToken& next, TokenId token);

// exp(logit) / sum of exp(logit), for as many tokens as `logits` has.
void FillProbabilities(std::span<const float> logits, const NextToken& next,
                       std::span<float> probabilities);

// KL(p || q) in nats of two distributions over the same tokens; exactly 0 for equal bits. The
// probabilities of p are given, since one p is compared with many q.
double Divergence(std::span<const float> probabilities, std::span<const float> p_logits,
                  const NextToken& p, std::span<const float> q_logits, const NextToken& q);

// Where `at` lies among `xs`, for linear interpolation: at = xs[low] + share * (xs[high] -
// xs[low]), low and high being neighbours in ascending order of xs. Nothing outside of their range.
struct Bracket {
  size_t low = 0;
  size_t high = 0;
  double share = 0;
};
std::optional<Bracket> FindBracket(std::span<const double> xs, double at);
double Interpolate(const Bracket& bracket, double low, double high);
Estimate Interpolate(const Bracket& bracket, const Estimate& low, const Estimate& high);

// The points that no other beats, smaller being better in both coordinates; by ascending cost. Of
// equal points the first.
struct Tradeoff {
  double cost = 0;
  double loss = 0;
};
std::vector<size_t> ParetoFront(std::span<const Tradeoff> points);

}  // namespace lynx::cli
