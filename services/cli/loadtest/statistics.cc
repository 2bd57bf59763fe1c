#include "services/cli/loadtest/statistics.h"

#include <algorithm>
#include <cmath>

#include "common/base/check.h"

namespace lynx::loadtest {
namespace {

constexpr double kLeast = 1e-9;
constexpr double kMost = 1e6;
constexpr int kPerOctave = 512;
constexpr size_t kBuckets = 50 * kPerOctave + 1;  // 1e-9 * 2^50 > 1e6; bucket 0 is for 0.

}  // namespace

double Percentile(std::span<const double> sorted, double share) {
  LYNX_CHECK(!sorted.empty());
  const double at = share * static_cast<double>(sorted.size() - 1);
  const auto low = static_cast<size_t>(at);
  const size_t high = std::min(low + 1, sorted.size() - 1);
  return sorted[low] + (at - static_cast<double>(low)) * (sorted[high] - sorted[low]);
}

Summary Summarise(std::vector<double> values) {
  if (values.empty()) return {};
  std::sort(values.begin(), values.end());
  const auto count = static_cast<double>(values.size());
  double sum = 0;
  for (const double value : values) sum += value;
  const double mean = sum / count;
  double squares = 0;
  for (const double value : values) squares += (value - mean) * (value - mean);
  return {.count = count,
          .mean = mean,
          .deviation = std::sqrt(squares / count),
          .min = values.front(),
          .p50 = Percentile(values, 0.5),
          .p90 = Percentile(values, 0.9),
          .p95 = Percentile(values, 0.95),
          .p99 = Percentile(values, 0.99),
          .max = values.back()};
}

LogHistogram::LogHistogram() : buckets_(kBuckets) {}

size_t LogHistogram::BucketOf(double value) {
  if (value < kLeast) return 0;
  const double octaves = std::log2(value / kLeast);
  return std::min(1 + static_cast<size_t>(octaves * kPerOctave), kBuckets - 1);
}

double LogHistogram::MiddleOf(size_t bucket) {
  if (bucket == 0) return 0;
  return kLeast * std::exp2((static_cast<double>(bucket) - 0.5) / kPerOctave);
}

void LogHistogram::Add(double value, uint64_t count) {
  if (count == 0) return;
  value = std::clamp(value, 0.0, kMost);
  const auto weight = static_cast<double>(count);
  buckets_[BucketOf(value)] += count;
  min_ = count_ == 0 ? value : std::min(min_, value);
  max_ = std::max(max_, value);
  count_ += count;
  sum_ += value * weight;
  sum_of_squares_ += value * value * weight;
}

double LogHistogram::Quantile(double share) const {
  if (count_ == 0) return 0;
  const auto rank = static_cast<uint64_t>(std::llround(share * static_cast<double>(count_ - 1)));
  uint64_t below = 0;
  for (size_t i = 0; i < kBuckets; ++i) {
    below += buckets_[i];
    if (below > rank) return std::clamp(MiddleOf(i), min_, max_);
  }
  return max_;
}

double LogHistogram::ShareUpTo(double value) const {
  if (count_ == 0) return 0;
  const size_t last = BucketOf(std::clamp(value, 0.0, kMost));
  uint64_t below = 0;
  for (size_t i = 0; i <= last; ++i) below += buckets_[i];
  return static_cast<double>(below) / static_cast<double>(count_);
}

Summary LogHistogram::Summarise() const {
  if (count_ == 0) return {};
  const auto count = static_cast<double>(count_);
  const double mean = sum_ / count;
  return {.count = count,
          .mean = mean,
          .deviation = std::sqrt(std::max(0.0, sum_of_squares_ / count - mean * mean)),
          .min = min_,
          .p50 = Quantile(0.5),
          .p90 = Quantile(0.9),
          .p95 = Quantile(0.95),
          .p99 = Quantile(0.99),
          .max = max_};
}

}  // namespace lynx::loadtest
