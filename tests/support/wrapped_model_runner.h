#pragma once

#include <memory>
#include <span>
#include <string>
#include <utility>

#include "common/kv/kv_arena.h"
#include "common/model/model_runner.h"

namespace lynx::testing {

// Another model, but for what a derived class changes; Step() it always does.
class WrappedModelRunner : public model::ModelRunner {
 public:
  explicit WrappedModelRunner(std::unique_ptr<model::ModelRunner> model)
      : model_(std::move(model)) {}

  std::span<const float> logits() const override { return model_->logits(); }
  const model::StepStats& stats() const override { return model_->stats(); }
  model::ExpertMover* expert_mover() override { return model_->expert_mover(); }
  const model::ModelSpec& spec() const override { return model_->spec(); }
  kv::KvArena& kv() override { return model_->kv(); }
  const std::string& numeric_class() const override { return model_->numeric_class(); }
  const std::string& compatibility_hash() const override { return model_->compatibility_hash(); }

 protected:
  const std::unique_ptr<model::ModelRunner> model_;
};

}  // namespace lynx::testing
