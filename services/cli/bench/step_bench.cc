#include "services/cli/bench/step_bench.h"

#include <algorithm>
#include <chrono>
#include <string>
#include <utility>

#include "common/base/status_macros.h"
#include "services/cli/bench/kv_noise.h"
#include "services/cli/bench/quantile.h"
#include "services/cli/bench/roofline.h"

namespace lynx::cli {
namespace {

constexpr int kReadPasses = 3;  // Of the bandwidth buffer, in each round.

}  // namespace

StepBench::StepBench(const StepBenchOptions& options, model::ModelRunner& runner,
                     RouterReplay* replay, kv::BlockPool& pool, ReadBandwidth& bandwidth,
                     ArithmeticRate& arithmetic)
    : options_(options),
      runner_(runner),
      replay_(replay),
      pool_(pool),
      bandwidth_(bandwidth),
      arithmetic_(arithmetic),
      sampler_(runner.spec().vocab_size),
      rng_(options.seed) {}

absl::StatusOr<std::vector<BenchResult>> StepBench::Decode(int32_t batch, int32_t context,
                                                           int32_t prompt_rows,
                                                           std::span<const EvalPolicy> policies) {
  LYNX_RETURN_IF_ERROR(Lease(batch + (prompt_rows > 0 ? 1 : 0), context));
  for (const kv::BlockLease& lease : leases_) {
    if (options_.made_up_prompts) {
      FillWithNoise(lease.blocks(), options_.seed, runner_.kv());
    } else {
      LYNX_RETURN_IF_ERROR(ComputePrompt(lease, context, 0, nullptr));
    }
  }
  std::vector<StepSamples> samples(policies.size());
  for (int64_t round = 0; round < options_.rounds; ++round) {
    const std::mt19937 tokens = rng_;
    for (size_t i = 0; i < policies.size(); ++i) {
      // Also leaves nothing in the caches of the same steps of the policy before.
      LYNX_ASSIGN_OR_RETURN(const MachineRates rates, MeasureMachine(batch + prompt_rows));
      rng_ = tokens;
      const int64_t first = round * options_.steps;
      // A step that is not counted, with experts of its own, brings the caches to where they are in
      // a running server.
      LYNX_RETURN_IF_ERROR(
          DecodeStep(context, prompt_rows, first + options_.steps, policies[i].policy, nullptr));
      for (int64_t step = first; step < first + options_.steps; ++step) {
        LYNX_RETURN_IF_ERROR(
            DecodeStep(context, prompt_rows, step, policies[i].policy, &samples[i]));
        samples[i].EndStep();
      }
      samples[i].EndRound(rates);
    }
  }
  const auto exact = std::find_if(policies.begin(), policies.end(),
                                  [](const EvalPolicy& policy) { return !policy.policy.lossy(); });
  std::vector<BenchResult> results;
  for (size_t i = 0; i < policies.size(); ++i) {
    BenchResult result = samples[i].Summarise(batch);
    result.policy = policies[i].name;
    result.batch = batch;
    result.prompt_rows = prompt_rows;
    result.context = context;
    if (exact != policies.end() && policies[i].policy.lossy()) {
      result.against_exact =
          samples[i].Against(samples[static_cast<size_t>(exact - policies.begin())]);
    }
    results.push_back(std::move(result));
  }
  return results;
}

absl::StatusOr<BenchResult> StepBench::Prefill(int32_t batch, int32_t context) {
  LYNX_RETURN_IF_ERROR(Lease(batch, context));
  LYNX_RETURN_IF_ERROR(ComputePrompt(leases_.front(), context, 0, nullptr));
  StepSamples samples;
  for (int64_t round = 0; round < options_.rounds; ++round) {
    LYNX_ASSIGN_OR_RETURN(const MachineRates rates,
                          MeasureMachine(std::min(options_.chunk, context)));
    for (size_t i = 0; i < leases_.size(); ++i) {
      const int64_t step = round * batch + static_cast<int64_t>(i);
      LYNX_RETURN_IF_ERROR(ComputePrompt(leases_[i], context, step, &samples));
      samples.EndStep();
    }
    samples.EndRound(rates);
  }
  BenchResult result = samples.Summarise(context);
  result.policy = "exact";
  result.batch = batch;
  result.context = context;
  return result;
}

absl::Status StepBench::Lease(int32_t batch, int32_t context) {
  leases_.clear();
  const int64_t blocks = kv::BlocksFor(int64_t{context} + 1) * runner_.kv().layout().groups.count();
  for (int32_t i = 0; i < batch; ++i) {
    LYNX_ASSIGN_OR_RETURN(kv::BlockLease lease, pool_.Acquire(blocks));
    leases_.push_back(std::move(lease));
  }
  return absl::OkStatus();
}

// `rows`: of a step.
absl::StatusOr<MachineRates> StepBench::MeasureMachine(int64_t rows) {
  std::vector<double> passes;
  for (int pass = 0; pass < kReadPasses; ++pass) passes.push_back(bandwidth_.Measure());
  bandwidths_.insert(bandwidths_.end(), passes.begin(), passes.end());
  LYNX_ASSIGN_OR_RETURN(const double rate, arithmetic_.Measure(rows));
  arithmetic_rates_.push_back(rate);
  return MachineRates{.bytes_per_second = Median(passes), .operations_per_second = rate};
}

std::vector<TokenId> StepBench::RandomTokens(int32_t count) {
  std::uniform_int_distribution<TokenId> token(0, runner_.spec().vocab_size - 1);
  std::vector<TokenId> tokens(static_cast<size_t>(count));
  for (TokenId& t : tokens) t = token(rng_);
  return tokens;
}

absl::Status StepBench::ComputePrompt(const kv::BlockLease& lease, int32_t context, int64_t step,
                                      StepSamples* samples) {
  const std::vector<TokenId> tokens = RandomTokens(context);
  for (int32_t start = 0; start < context; start += options_.chunk) {
    const int32_t count = std::min(options_.chunk, context - start);
    model::SequenceRows rows;
    rows.tokens = std::span(tokens).subspan(static_cast<size_t>(start), static_cast<size_t>(count));
    rows.start = start;
    rows.blocks = lease.blocks();
    rows.logits_rows = start + count == context ? 1 : 0;
    const double attended = static_cast<double>(count) * (start + (count + 1) / 2.0);
    const StepRows counts{.rows = count, .logits_rows = rows.logits_rows, .attended = attended};
    LYNX_RETURN_IF_ERROR(Step({&rows, 1}, counts, step + start / options_.chunk, samples));
  }
  return absl::OkStatus();
}

absl::Status StepBench::DecodeStep(int32_t context, int32_t prompt_rows, int64_t step,
                                   const moe::Policy& policy, StepSamples* samples) {
  const size_t batch = leases_.size() - (prompt_rows > 0 ? 1 : 0);
  const std::vector<TokenId> tokens = RandomTokens(static_cast<int32_t>(batch) + prompt_rows);
  std::vector<model::SequenceRows> rows(leases_.size());
  for (size_t i = 0; i < batch; ++i) {
    rows[i].tokens = std::span(tokens).subspan(i, 1);
    rows[i].start = context;
    rows[i].blocks = leases_[i].blocks();
    rows[i].logits_rows = 1;
    rows[i].decode = true;
    rows[i].policy = &policy;
  }
  StepRows counts{.rows = static_cast<int64_t>(tokens.size()),
                  .logits_rows = static_cast<int64_t>(batch),
                  .attended = static_cast<double>(batch) * (context + 1)};
  if (prompt_rows > 0) {
    rows[batch].tokens = std::span(tokens).subspan(batch);
    rows[batch].start = context - prompt_rows;
    rows[batch].blocks = leases_[batch].blocks();
    counts.attended += prompt_rows * (context - (prompt_rows - 1) / 2.0);
  }
  return Step(rows, counts, step, samples);
}

// The time includes a greedy choice for every row of logits.
absl::Status StepBench::Step(std::span<const model::SequenceRows> rows, const StepRows& counts,
                             int64_t step, StepSamples* samples) {
  if (replay_ != nullptr) replay_->set_step(step);
  const auto start = std::chrono::steady_clock::now();
  LYNX_RETURN_IF_ERROR(runner_.Step(rows, nullptr));
  const auto vocab_size = static_cast<size_t>(runner_.spec().vocab_size);
  const std::span<const float> logits = runner_.logits();
  for (size_t at = 0; at < logits.size(); at += vocab_size) {
    LYNX_RETURN_IF_ERROR(
        sampler_.Sample(logits.subspan(at, vocab_size), greedy_, no_history_, sampled_));
  }
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  if (samples != nullptr) {
    samples->Add(seconds.count(), WorkOfStep(runner_.spec(), counts, runner_.stats()),
                 runner_.stats());
  }
  return absl::OkStatus();
}

}  // namespace lynx::cli
