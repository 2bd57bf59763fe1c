#pragma once

#include <cstdint>
#include <span>
#include <utility>

#include "common/model/router_override.h"
#include "services/cli/bench/router_traces.h"

namespace lynx::cli {

// Gives the rows of a step the router logits that real tokens had: at step s, layer l has those of
// number s * layers + l of ComposeRouterLogits(). Steps of one number have the same routing, so
// that policies can be compared on it.
class RouterReplay : public model::RouterOverride {
 public:
  explicit RouterReplay(RouterTraces traces) : traces_(std::move(traces)) {}

  // Of the steps to come.
  void set_step(int64_t step) { step_ = step; }

  void Replace(int32_t layer, int32_t rows, int32_t experts, std::span<float> logits) override {
    ComposeRouterLogits(traces_, experts, rows, step_ * traces_.layers + layer, logits);
  }

 private:
  const RouterTraces traces_;
  int64_t step_ = 0;
};

}  // namespace lynx::cli
