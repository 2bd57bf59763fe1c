#pragma once

#include <memory>
#include <span>
#include <vector>

#include "common/model/model_runner.h"
#include "tests/support/wrapped_model_runner.h"

namespace lynx::testing {

// A model whose lossy policies do as much harm as wanted: while the switch is on, the logits of
// rows with a lossy policy come out negated, in steps where policies apply. Everything else is the
// model's own.
class HarmfulModelRunner final : public WrappedModelRunner {
 public:
  // `harm` is looked at in each step and outlives this.
  HarmfulModelRunner(std::unique_ptr<model::ModelRunner> model, const bool& harm);

  absl::Status Step(std::span<const model::SequenceRows> batch,
                    model::StepObserver* observer) override;
  std::span<const float> logits() const override { return logits_; }

 private:
  const bool& harm_;
  std::vector<float> logits_;
};

}  // namespace lynx::testing
