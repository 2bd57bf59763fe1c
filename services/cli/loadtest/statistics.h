#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

// The arithmetic of reports: pure functions.
namespace lynx::loadtest {

// Of a set of values; all 0 when there are none.
struct Summary {
  double count = 0;
  double mean = 0;
  double deviation = 0;  // Standard deviation of the set itself (numpy's default).
  double min = 0;
  double p50 = 0;
  double p90 = 0;
  double p95 = 0;
  double p99 = 0;
  double max = 0;
};

// Linear interpolation between the two nearest ranks, as numpy.percentile does. `sorted` ascends
// and is not empty; share in [0, 1].
double Percentile(std::span<const double> sorted, double share);

Summary Summarise(std::vector<double> values);

// Counts of values that are too many to keep, in fixed memory: each lands in a bucket no wider than
// 0.2 % of it, so percentiles are that exact; mean, deviation, least and largest are exact.
class LogHistogram {
 public:
  LogHistogram();

  // Adds `value` (clamped to [0, 1e6]) `count` times. Values under 1e-9 count as 0.
  void Add(double value, uint64_t count = 1);

  uint64_t count() const { return count_; }
  // The value at rank share * (count - 1), rounded to a rank; 0 when empty.
  double Quantile(double share) const;
  // Share of the values that are at most `value`.
  double ShareUpTo(double value) const;
  Summary Summarise() const;

 private:
  static size_t BucketOf(double value);
  static double MiddleOf(size_t bucket);

  std::vector<uint64_t> buckets_;
  uint64_t count_ = 0;
  double sum_ = 0;
  double sum_of_squares_ = 0;
  double min_ = 0;
  double max_ = 0;
};

}  // namespace lynx::loadtest
