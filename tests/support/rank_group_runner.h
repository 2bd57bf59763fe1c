#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/collective/communicator.h"
#include "common/model/model_runner.h"

namespace lynx::testing {

// A group of ranks that are threads of this process, as one runner: every rank makes every step.
// Results and KV are those of rank 0.
class RankGroupRunner final : public model::ModelRunner {
 public:
  // Fails as the first rank that does.
  static absl::StatusOr<std::unique_ptr<RankGroupRunner>> Load(model::RunnerOptions options);

  // The first failure in the order of ranks. Ranks that differ in their logits are one.
  absl::Status Step(std::span<const model::SequenceRows> batch,
                    model::StepObserver* observer) override;
  std::span<const float> logits() const override { return ranks_[0]->logits(); }
  const model::StepStats& stats() const override { return ranks_[0]->stats(); }
  const model::ModelSpec& spec() const override { return ranks_[0]->spec(); }
  kv::KvArena& kv() override { return ranks_[0]->kv(); }
  const std::string& numeric_class() const override { return ranks_[0]->numeric_class(); }
  const std::string& compatibility_hash() const override { return ranks_[0]->compatibility_hash(); }

  size_t size() const { return ranks_.size(); }
  model::ModelRunner& rank(size_t index) { return *ranks_[index]; }

 private:
  RankGroupRunner() = default;

  std::vector<std::unique_ptr<collective::Communicator>> group_;
  std::vector<std::unique_ptr<model::ModelRunner>> ranks_;
};

}  // namespace lynx::testing
