#include "tests/support/layered_steps.h"

#include <cstddef>
#include <span>
#include <utility>

#include "common/base/check.h"
#include "tests/support/wrapped_model_runner.h"

namespace lynx::testing {

class LayeredSteps::Runner final : public WrappedModelRunner {
 public:
  Runner(LayeredSteps& steps, std::unique_ptr<model::ModelRunner> model)
      : WrappedModelRunner(std::move(model)), steps_(steps) {}

  absl::Status Step(std::span<const model::SequenceRows> batch,
                    model::StepObserver* observer) override {
    Observer slow(steps_, observer);
    return model_->Step(batch, &slow);
  }

 private:
  class Observer final : public model::StepObserver {
   public:
    Observer(LayeredSteps& steps, model::StepObserver* to) : steps_(steps), to_(to) {}
    bool OnLayerDone(int32_t layer) override {
      steps_.StandStill();
      return to_ == nullptr || to_->OnLayerDone(layer);
    }
    std::span<const size_t> Leaving() override {
      return to_ == nullptr ? std::span<const size_t>() : to_->Leaving();
    }

   private:
    LayeredSteps& steps_;
    model::StepObserver* const to_;
  };

  LayeredSteps& steps_;
};

std::unique_ptr<model::ModelRunner> LayeredSteps::Wrap(LayeredSteps& steps,
                                                       std::unique_ptr<model::ModelRunner> model) {
  return std::make_unique<Runner>(steps, std::move(model));
}

void LayeredSteps::Run(std::function<void()> step, std::function<void()> done) {
  LYNX_CHECK(!done_);
  done_ = std::move(done);
  loop_.Post([this, step = std::move(step)]() mutable {
    thread_ = std::thread([this, step = std::move(step)] {
      step();
      ended_ = true;
      loop_goes_.release();
    });
    Await();
  });
}

void LayeredSteps::Await() {
  loop_goes_.acquire();
  if (!ended_) {
    loop_.RunAfter(layer_time_, [this] {
      step_goes_.release();
      Await();
    });
    return;
  }
  thread_.join();
  ended_ = false;
  loop_.Post(std::exchange(done_, nullptr));
}

void LayeredSteps::StandStill() {
  if (hurry_) return;
  loop_goes_.release();
  step_goes_.acquire();
}

void LayeredSteps::Finish() {
  if (!thread_.joinable()) return;
  hurry_ = true;
  step_goes_.release();
  thread_.join();
}

}  // namespace lynx::testing
