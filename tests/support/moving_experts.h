#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "common/model/expert_mover.h"
#include "tests/support/rank_group_runner.h"

namespace lynx::testing {

// A group of ranks among whom experts of some layer change places before every step, at random.
class MovingExpertsRunner final : public model::ModelRunner {
 public:
  // `ranks` has spare slots, and outlives this.
  MovingExpertsRunner(RankGroupRunner& ranks, uint64_t seed);

  // Fails as the first rank that cannot make the change, or as the step.
  absl::Status Step(std::span<const model::SequenceRows> batch,
                    model::StepObserver* observer) override;
  std::span<const float> logits() const override { return ranks_.logits(); }
  const model::StepStats& stats() const override { return ranks_.stats(); }
  const model::ModelSpec& spec() const override { return ranks_.spec(); }
  kv::KvArena& kv() override { return ranks_.kv(); }
  const std::string& numeric_class() const override { return ranks_.numeric_class(); }
  const std::string& compatibility_hash() const override { return ranks_.compatibility_hash(); }

  int32_t moved() const { return moved_; }  // Experts, over all changes.

 private:
  moe::ExpertSlots Changed(const moe::ExpertSlots& slots);

  RankGroupRunner& ranks_;
  std::mt19937_64 random_;
  std::vector<moe::ExpertSlots> slots_;  // [layers]
  uint32_t changes_ = 0;
  int32_t moved_ = 0;
};

}  // namespace lynx::testing
