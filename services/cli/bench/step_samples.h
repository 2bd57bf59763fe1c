#pragma once

#include <cstdint>
#include <vector>

#include "common/model/model_runner.h"
#include "services/cli/bench/bench_report.h"
#include "services/cli/bench/roofline.h"

namespace lynx::cli {

// What the machine could do in one round.
struct MachineRates {
  double bytes_per_second = 0;
  double operations_per_second = 0;  // 0: not measured, so nothing is bound by it.
};

// Steps of one policy at one batch and context, gathered round by round.
class StepSamples {
 public:
  // A measured step, or a chunk of one: time and work count towards the step that EndStep() ends.
  void Add(double seconds, const std::vector<Work>& work, const model::StepStats& stats);
  void EndStep();
  // Relates the round's steps, of which there was one at least, to the rates of the same round.
  void EndRound(const MachineRates& rates);

  // Of at least one round. tokens: that one step makes.
  BenchResult Summarise(double tokens) const;
  // Medians of the rounds' ratios to `exact`, which had the same rounds.
  BenchResult::Ratio Against(const StepSamples& exact) const;

 private:
  struct Round {
    double seconds = 0;  // Median of the steps.
    double bytes = 0;    // Of a step, mean.
    double bandwidth = 0;
    double bandwidth_share = 0;
    double roof_share = 0;
  };

  std::vector<double> seconds_;  // Of every step.
  std::vector<Round> rounds_;
  bool arithmetic_bound_ = false;
  double operations_ = 0;  // Of all steps.
  double experts_ = 0;     // Summed over all MoE layers run.
  double moe_layers_ = 0;
  double plan_seconds_ = 0;
  int64_t weight_bytes_ = 0;  // By the plans, and as counted where they were read.
  int64_t streamed_bytes_ = 0;
  // Of the step and of the round in progress.
  double step_seconds_ = 0;
  std::vector<double> round_seconds_;
  std::vector<std::vector<Work>> round_work_;
};

}  // namespace lynx::cli
