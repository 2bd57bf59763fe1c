#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "common/model/model_runner.h"
#include "common/moe/policy.h"

namespace lynx::engine {

// What became of one pair of next-token distributions, the exact one and a policy's.
struct Comparison {
  enum class Kind : uint8_t {
    kCompared,
    kExactBroken,   // NaN or +Inf in the exact row: the model's fault, nothing is said of the
                    // policy.
    kPolicyBroken,  // The exact row is sound and the policy's is not.
  };
  Kind kind = Kind::kCompared;
  double kl_nats = 0;     // KL(exact || policy), >= 0 and finite.
  bool same_top1 = true;  // Ties go to the lowest id, as in greedy sampling.
};

// Both rows are logits of one vocabulary; not empty. In double precision, whose rounding is far
// below any budget. A policy that rules out a token which is possible exactly is broken: the
// divergence is infinite.
Comparison Compare(std::span<const float> exact, std::span<const float> policy);

// Runs a step's other plan ahead of it and compares what both say of some of its rows: how much a
// lossy policy changes is then known for certain and costs no sequence anything but time.
//
// Two directions:
//   CompareWithExact     the step runs the policies, the shadow the compared rows alone, exactly
//                        (an exact row does not depend on its neighbours);
//   CompareWithPolicies  the step runs exactly, the shadow the whole batch under the policies, as
//                        these depend on who is in it: a probe of what they would do.
// Both start from the same KV. The shadow writes KV of the step's own tokens only, which the step
// then writes again before anything reads it: sequences, tokens and KV have the same bits with and
// without. A compared row must be a decode row, and a step with any other rows, or with a single
// one, is exact anyway and is not compared.
//
// Cost: a forward pass of the shadow's rows, a copy of the compared rows' logits, and two
// exponentials for each of their logits.
//
// Reused for every step. Set up and read between steps; Engine::Step uses it on its own thread.
class Shadow {
 public:
  enum class Outcome : uint8_t {
    kNothing,     // The step did not come to it: it failed or was abandoned, or has not run.
    kUnsuitable,  // The step has prompt rows or a single one, or no row to compare.
    kFailed,      // The shadow's own pass failed, see status(); the step was not affected.
    kCompared,
  };

  struct Row {
    int32_t item = 0;  // In the step's items.
    Comparison comparison;
  };

  // Both > 0. `max_rows` bounds the rows compared in a step.
  Shadow(int32_t vocab_size, int32_t max_rows);

  // `items`: ascending positions in the next step's items; those after `max_rows` are left out.
  void CompareWithExact(std::span<const int32_t> items);
  // `policies`: of each of the step's items, null for exact ones; they outlive the step.
  void CompareWithPolicies(std::span<const int32_t> items,
                           std::span<const moe::Policy* const> policies);

  // Of the last step.
  Outcome outcome() const { return outcome_; }
  const absl::Status& status() const { return status_; }
  std::span<const Row> rows() const { return results_; }
  // Gate mass that the policy's plans kept: mean over rows and MoE layers.
  double kept_mass() const { return kept_mass_; }

  int32_t max_rows() const { return max_rows_; }

  // For the engine: before and after the step's own pass over `batch`, whose entries are the
  // items. `observer` may abandon the pass.
  void Run(model::ModelRunner& runner, std::span<const model::SequenceRows> batch,
           model::StepObserver* observer);
  void Finish(const model::ModelRunner& runner, std::span<const model::SequenceRows> batch);

 private:
  void Prepare(std::span<const int32_t> items);
  // Keeps those of items_ that have a decode row with logits. Whether any has.
  bool Suits(std::span<const model::SequenceRows> batch);

  const size_t vocab_size_;
  const int32_t max_rows_;
  std::vector<int32_t> items_;
  std::vector<const moe::Policy*> policies_;  // Of the shadow; empty: it is exact.
  std::vector<model::SequenceRows> batch_;
  std::vector<float> logits_;  // [items_, vocab_size] of the shadow.
  bool ran_ = false;
  Outcome outcome_ = Outcome::kNothing;
  absl::Status status_;
  std::vector<Row> results_;
  double kept_mass_ = 1;
};

}  // namespace lynx::engine
