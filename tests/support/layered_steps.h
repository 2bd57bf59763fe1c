#pragma once

#include <functional>
#include <memory>
#include <semaphore>
#include <thread>

#include "absl/time/time.h"
#include "common/concurrency/event_loop.h"
#include "common/model/model_runner.h"
#include "common/node/step_executor.h"

namespace lynx::testing {

// Steps that stand still at the end of each layer until `layer_time` of the loop's time has passed,
// so that a simulated cluster hears messages in the middle of one. The step has a thread, but
// either it runs or the loop's does: a run stays a pure function of its inputs.
class LayeredSteps final : public node::StepExecutor {
 public:
  LayeredSteps(EventLoop& loop, absl::Duration layer_time) : loop_(loop), layer_time_(layer_time) {}
  ~LayeredSteps() override { Finish(); }

  void Run(std::function<void()> step, std::function<void()> done) override;
  // Runs a step that is under way to its end at once; its `done` is not posted. For a node that is
  // killed, before what the step uses is destroyed.
  void Finish();

  // A node's model whose steps stand still for `steps`, which outlives it.
  static std::unique_ptr<model::ModelRunner> Wrap(LayeredSteps& steps,
                                                  std::unique_ptr<model::ModelRunner> model);

 private:
  class Runner;
  void Await();
  void StandStill();  // On the step's thread.

  EventLoop& loop_;
  const absl::Duration layer_time_;
  std::function<void()> done_;
  std::thread thread_;
  std::binary_semaphore loop_goes_{0};
  std::binary_semaphore step_goes_{0};
  bool ended_ = false;
  bool hurry_ = false;
};

}  // namespace lynx::testing
