#pragma once

#include <cstdint>
#include <random>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/engine/sampler.h"
#include "common/kv/block_pool.h"
#include "common/model/model_runner.h"
#include "services/cli/bench/arithmetic_rate.h"
#include "services/cli/bench/bench_report.h"
#include "services/cli/bench/read_bandwidth.h"
#include "services/cli/bench/router_replay.h"
#include "services/cli/bench/step_samples.h"
#include "services/cli/eval/policy_list.h"

namespace lynx::cli {

struct StepBenchOptions {
  int32_t rounds = 5;
  int32_t steps = 8;  // In a round, for each policy.
  int32_t chunk = 512;
  uint32_t seed = 1;
  // KV of prompts is made up (FillWithNoise) instead of computed. Of weights that are made up, too,
  // it would mean no more.
  bool made_up_prompts = false;
};

// Measures steps of one engine at one batch and context after the other. In a round every
// policy in turn has the machine measured and then some steps, all of a round on the same tokens
// and routing: bandwidth moves by a factor of two within minutes on shared machines, so that only
// what is of the same round may be compared.
//
// Every sequence and step has its own random tokens. With shared ones all rows would take the same
// experts, and decode would look far faster than it is.
//
// Everything is borrowed. One thread.
class StepBench {
 public:
  // `replay`, which the runner has, may be null.
  StepBench(const StepBenchOptions& options, model::ModelRunner& runner, RouterReplay* replay,
            kv::BlockPool& pool, ReadBandwidth& bandwidth, ArithmeticRate& arithmetic);

  // One result for each policy: steps of one token for each of `batch` sequences, always at
  // position `context`, so that all cost the same. Beside them the last `prompt_rows` tokens of
  // another one's prompt, of as many; at most `context`.
  absl::StatusOr<std::vector<BenchResult>> Decode(int32_t batch, int32_t context,
                                                  int32_t prompt_rows,
                                                  std::span<const EvalPolicy> policies);
  // Whole prompts of `context` tokens in chunks, `batch` of them in a round.
  absl::StatusOr<BenchResult> Prefill(int32_t batch, int32_t context);

  // Bytes per second of every measurement so far, and operations per second of every round.
  const std::vector<double>& bandwidths() const { return bandwidths_; }
  const std::vector<double>& arithmetic_rates() const { return arithmetic_rates_; }

 private:
  absl::Status Lease(int32_t batch, int32_t context);
  absl::StatusOr<MachineRates> MeasureMachine(int64_t rows);
  std::vector<TokenId> RandomTokens(int32_t count);
  absl::Status ComputePrompt(const kv::BlockLease& lease, int32_t context, int64_t step,
                             StepSamples* samples);
  // Those of the last lease are the prompt's, if there are any.
  absl::Status DecodeStep(int32_t context, int32_t prompt_rows, int64_t step,
                          const moe::Policy& policy, StepSamples* samples);
  absl::Status Step(std::span<const model::SequenceRows> rows, const StepRows& counts, int64_t step,
                    StepSamples* samples);

  const StepBenchOptions options_;
  model::ModelRunner& runner_;
  RouterReplay* const replay_;
  kv::BlockPool& pool_;
  ReadBandwidth& bandwidth_;
  ArithmeticRate& arithmetic_;
  engine::Sampler sampler_;
  const engine::SamplingParams greedy_{.temperature = 0};
  const engine::SamplerState no_history_{greedy_, {}};
  engine::SampledToken sampled_;
  std::mt19937 rng_;
  std::vector<kv::BlockLease> leases_;
  std::vector<double> bandwidths_;
  std::vector<double> arithmetic_rates_;
};

}  // namespace lynx::cli
