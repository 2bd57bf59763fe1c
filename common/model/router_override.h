#pragma once

#include <cstdint>
#include <span>

namespace lynx::model {

// Replaces what the router of an MoE layer said, so that a bench of random weights can replay the
// routing of a real model: random routers spread tokens evenly, which no trained model does.
// Serving has none.
class RouterOverride {
 public:
  virtual ~RouterOverride() = default;

  // Called on the stepping thread once a step and MoE layer, after the router's own product, whose
  // result `logits` [rows, experts] holds, rows in the order of the batch. What it leaves there is
  // what the plan is made of.
  virtual void Replace(int32_t layer, int32_t rows, int32_t experts, std::span<float> logits) = 0;
};

}  // namespace lynx::model
