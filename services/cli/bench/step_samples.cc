#include "services/cli/bench/step_samples.h"

#include <limits>
#include <numeric>
#include <utility>

#include "common/base/check.h"
#include "services/cli/bench/quantile.h"

namespace lynx::cli {

void StepSamples::Add(double seconds, const std::vector<Work>& work,
                      const model::StepStats& stats) {
  step_seconds_ += seconds;
  round_work_.push_back(work);
  operations_ += TotalOperations(work);
  for (const moe::PlanStats& plan : stats.plans) {
    experts_ += plan.experts;
    moe_layers_ += plan.experts > 0 ? 1 : 0;
  }
  weight_bytes_ += stats.weight_bytes_read;
  streamed_bytes_ += stats.weight_bytes_streamed;
  plan_seconds_ += std::accumulate(stats.plan_seconds.begin(), stats.plan_seconds.end(), 0.0);
}

void StepSamples::EndStep() { round_seconds_.push_back(std::exchange(step_seconds_, 0)); }

void StepSamples::EndRound(const MachineRates& rates) {
  LYNX_CHECK(!round_seconds_.empty());
  const double operations_per_second = rates.operations_per_second > 0
                                           ? rates.operations_per_second
                                           : std::numeric_limits<double>::infinity();
  double bytes = 0;
  double roof = 0;
  for (const std::vector<Work>& work : round_work_) {
    bytes += TotalBytes(work);
    roof += RoofSeconds(work, rates.bytes_per_second, operations_per_second);
    arithmetic_bound_ |= AnyBoundByArithmetic(work, rates.bytes_per_second, operations_per_second);
  }
  const auto steps = static_cast<double>(round_seconds_.size());
  const double seconds = Median(round_seconds_);
  rounds_.push_back({.seconds = seconds,
                     .bytes = bytes / steps,
                     .bandwidth = rates.bytes_per_second,
                     .bandwidth_share = bytes / steps / rates.bytes_per_second / seconds,
                     .roof_share = roof / steps / seconds});
  seconds_.insert(seconds_.end(), round_seconds_.begin(), round_seconds_.end());
  round_seconds_.clear();
  round_work_.clear();
}

BenchResult StepSamples::Summarise(double tokens) const {
  const auto median = [&](double Round::*field) {
    std::vector<double> values;
    for (const Round& round : rounds_) values.push_back(round.*field);
    return Median(values);
  };
  double bytes = 0;
  for (const Round& round : rounds_) bytes += round.bytes;
  const auto steps = static_cast<double>(seconds_.size());
  const double total = std::accumulate(seconds_.begin(), seconds_.end(), 0.0);
  const double step = Median(seconds_);
  return {.step_ms_p50 = step * 1e3,
          .step_ms_p99 = Quantile(seconds_, 0.99) * 1e3,
          .tokens_per_s = tokens / step,
          .bytes_per_step = bytes / static_cast<double>(rounds_.size()),
          .streamed_share = weight_bytes_ > 0 ? static_cast<double>(streamed_bytes_) /
                                                    static_cast<double>(weight_bytes_)
                                              : 1,
          .bandwidth_gb_s = median(&Round::bandwidth) / 1e9,
          .bandwidth_share = median(&Round::bandwidth_share),
          .roof_share = median(&Round::roof_share),
          .arithmetic_bound = arithmetic_bound_,
          .gflop_s = operations_ / steps / step / 1e9,
          .experts = moe_layers_ > 0 ? experts_ / moe_layers_ : 0,
          .plan_share = plan_seconds_ / total};
}

BenchResult::Ratio StepSamples::Against(const StepSamples& exact) const {
  LYNX_CHECK(rounds_.size() == exact.rounds_.size());
  std::vector<double> time;
  std::vector<double> bytes;
  for (size_t i = 0; i < rounds_.size(); ++i) {
    time.push_back(rounds_[i].seconds / exact.rounds_[i].seconds);
    bytes.push_back(rounds_[i].bytes / exact.rounds_[i].bytes);
  }
  return {.time = Median(time), .bytes = Median(bytes)};
}

}  // namespace lynx::cli
