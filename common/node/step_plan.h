#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/dtype.h"
#include "common/kv/block_pool.h"
#include "common/model/model_runner.h"
#include "common/moe/policy.h"

namespace lynx::node {

// A step in the words that rank 0 tells it to the others in: everything that decides what a runner
// does with it. `expert_change`: a model::ExpertChange that all ranks commit before it; 0: none.
// For processes of one program on machines of one kind.
std::string EncodeStep(std::span<const model::SequenceRows> batch, uint32_t expert_change = 0);

// A step that was told. Move-only: the batch points into it.
class StepPlan {
 public:
  // InvalidArgument: not an encoded step. Whether it fits the model is the runner's to check.
  static absl::StatusOr<StepPlan> Decode(std::string_view bytes);
  StepPlan(StepPlan&&) = default;
  StepPlan& operator=(StepPlan&&) = default;

  std::span<const model::SequenceRows> batch() const { return batch_; }
  uint32_t expert_change() const { return expert_change_; }

 private:
  StepPlan() = default;

  uint32_t expert_change_ = 0;
  std::vector<moe::Policy> policies_;
  std::vector<TokenId> tokens_;
  std::vector<kv::BlockId> blocks_;
  std::vector<model::SequenceRows> batch_;
};

}  // namespace lynx::node
