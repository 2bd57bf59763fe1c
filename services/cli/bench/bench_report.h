#pragma once

#include <cstdint>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

namespace lynx::cli {

// What was measured for one policy, batch and context: a line of the table.
struct BenchResult {
  std::string policy = {};
  int32_t batch = 0;
  int32_t prompt_rows = 0;  // Beside the batch, in each step.
  int32_t context = 0;
  double step_ms_p50 = 0;  // A step is one token of every sequence; in prefill, one whole prompt.
  double step_ms_p99 = 0;
  double tokens_per_s = 0;
  double bytes_per_step = 0;  // By the plans: weights of active experts once, dense weights, KV.
  // What kernels read of weights, counted where they do, over what the plans say. Anything but 1 is
  // a fault of one of the two.
  double streamed_share = 1;
  double bandwidth_gb_s = 0;  // Measured between these steps.
  // Time that reading those bytes takes at the bandwidth of the same round, over the step's time.
  double bandwidth_share = 0;
  // The same with each part of a step at the lower of its two roofs, bandwidth and arithmetic.
  double roof_share = 0;
  bool arithmetic_bound = false;  // Some part is, so that the two shares differ.
  double gflop_s = 0;
  double experts = 0;     // Distinct experts of a MoE layer, mean.
  double plan_share = 0;  // Of the step's time that went into plans.
  // Step time and bytes over those of exact plans on the same routing in the same rounds.
  struct Ratio {
    double time = 0;
    double bytes = 0;
  };
  std::optional<Ratio> against_exact = {};
};

struct BenchReport {
  std::string mode = {};   // decode, prefill or memory
  std::string model = {};  // A shape's name or a folder; empty for memory.
  int32_t layers = 0;
  int32_t threads = 0;
  std::string numeric_class = {};
  std::vector<std::string> notes = {};  // What a reader must know beside the numbers.
  int64_t read_buffer_bytes = 0;
  double bandwidth_gb_s = 0;      // Median of all measurements of the run.
  double arithmetic_gflop_s = 0;  // Most, of products with weights in the caches; 0: not measured.
  std::string arithmetic_isa = {};  // The instruction set of those products; empty: not measured.
  std::vector<BenchResult> results = {};
};

void PrintTable(const BenchReport& report, std::ostream& out);
void PrintJson(const BenchReport& report, std::ostream& out);

}  // namespace lynx::cli
