#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "common/model/model_spec.h"
#include "common/moe/policy.h"

namespace lynx::decode {

// Which policy the rows of a sequence have in the next step: the one place where the node's own
// policy and what a request asked for meet.
//
// One thread: the node's loop. What Choose() returned is read by the step and stays as it is until
// the step has ended.
class StepPolicy {
 public:
  // `policy` is the node's own, in the grammar of moe::ParsePolicy. What it leaves out is the
  // preset's of the model, which is called `model_name`. `has_auto`: the node has a controller for
  // the policy `auto`.
  //   InvalidArgument  it is malformed, or does not fit the model's experts; names the parameter.
  static absl::StatusOr<StepPolicy> Create(std::string_view policy, const model::ModelSpec& spec,
                                           std::string_view model_name, bool has_auto);

  // What a request asked for, in the same grammar; nothing when `policy` is empty: then the node's
  // own applies. InvalidArgument as above.
  absl::StatusOr<std::optional<moe::Policy>> Asked(std::string_view policy) const;

  // Null, or exact for one that asked for it where the node's own is not: the rows keep their own
  // top-k. `automatic` is what `auto` stands for in this step; not null where there is `auto`.
  const moe::Policy* Choose(const std::optional<moe::Policy>& asked,
                            const moe::Policy* automatic) const;

  // What `auto` moves along: exact, then `lossy_rungs` policies between these two.
  // InvalidArgument as above, and as moe::MakePolicyLadder.
  absl::StatusOr<std::vector<moe::Policy>> Ladder(std::string_view gentlest,
                                                  std::string_view harshest,
                                                  int32_t lossy_rungs) const;

  const moe::Policy& own() const { return own_; }

 private:
  StepPolicy(const model::ModelSpec& spec, std::string_view model_name);
  absl::StatusOr<moe::Policy> Parse(std::string_view policy) const;

  model::ModelSpec spec_;
  std::string model_name_;
  bool has_auto_ = false;
  moe::Policy own_;
};

}  // namespace lynx::decode
