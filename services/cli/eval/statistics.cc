#include "services/cli/eval/statistics.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "absl/status/status.h"
#include "kernels/sampling/logits.h"

namespace lynx::cli {

Estimate EstimateMean(std::span<const double> values) {
  const auto count = static_cast<double>(values.size());
  if (values.empty()) return {};
  const double mean = std::accumulate(values.begin(), values.end(), 0.0) / count;
  if (values.size() == 1) return {.mean = mean};
  double squares = 0;
  for (double value : values) squares += (value - mean) * (value - mean);
  return {.mean = mean, .error = std::sqrt(squares / (count - 1) / count)};
}

Estimate AverageOf(std::span<const Estimate> estimates) {
  if (estimates.empty()) return {};
  const auto count = static_cast<double>(estimates.size());
  double sum = 0;
  double variance = 0;
  for (const Estimate& estimate : estimates) {
    sum += estimate.mean;
    variance += estimate.error * estimate.error;
  }
  return {.mean = sum / count, .error = std::sqrt(variance) / count};
}

absl::StatusOr<NextToken> Summarise(std::span<const float> logits) {
  const kernels::LogitsSummary summary =
      logits.empty() ? kernels::LogitsSummary{} : kernels::SummarizeLogits(logits);
  if (!summary.valid) return absl::InternalError("the model's logits are not finite");
  return NextToken{.log_sum = summary.max + std::log(kernels::SumExp(logits, summary.max)),
                   .top = summary.argmax};
}

double NegativeLogLikelihood(std::span<const float> logits, const NextToken& next, TokenId token) {
  return next.log_sum - logits[static_cast<size_t>(token)];
}

void FillProbabilities(std::span<const float> logits, const NextToken& next,
                       std::span<float> probabilities) {
  std::vector<double> unused((logits.size() + kernels::kWeightBlock - 1) / kernels::kWeightBlock);
  kernels::ExpWeights(logits, static_cast<float>(next.log_sum), /*temperature=*/1,
                      /*min_weight=*/0, probabilities, unused);
}

double Divergence(std::span<const float> probabilities, std::span<const float> p_logits,
                  const NextToken& p, std::span<const float> q_logits, const NextToken& q) {
  double sum = 0;
  for (size_t i = 0; i < probabilities.size(); ++i) {
    const double log_ratio = (p_logits[i] - p.log_sum) - (q_logits[i] - q.log_sum);
    // A token that p rules out counts for nothing, whatever q says of it.
    sum += probabilities[i] > 0 ? probabilities[i] * log_ratio : 0;
  }
  return sum;
}

std::optional<Bracket> FindBracket(std::span<const double> xs, double at) {
  std::vector<size_t> order(xs.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return xs[a] < xs[b]; });
  for (size_t i = 0; i < order.size(); ++i) {
    const size_t high = order[i];
    if (xs[high] < at) continue;
    if (xs[high] == at) return Bracket{.low = high, .high = high};
    if (i == 0) return std::nullopt;
    const size_t low = order[i - 1];
    return Bracket{.low = low, .high = high, .share = (at - xs[low]) / (xs[high] - xs[low])};
  }
  return std::nullopt;
}

double Interpolate(const Bracket& bracket, double low, double high) {
  return low + bracket.share * (high - low);
}

Estimate Interpolate(const Bracket& bracket, const Estimate& low, const Estimate& high) {
  // The two ends were measured on the same tokens, so that their errors do not cancel.
  return {.mean = Interpolate(bracket, low.mean, high.mean),
          .error = Interpolate(bracket, low.error, high.error)};
}

std::vector<size_t> ParetoFront(std::span<const Tradeoff> points) {
  std::vector<size_t> order(points.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    if (points[a].cost != points[b].cost) return points[a].cost < points[b].cost;
    return points[a].loss < points[b].loss;
  });
  std::vector<size_t> front;
  double best = std::numeric_limits<double>::infinity();
  for (size_t i : order) {
    if (points[i].loss >= best) continue;
    best = points[i].loss;
    front.push_back(i);
  }
  return front;
}

}  // namespace lynx::cli
