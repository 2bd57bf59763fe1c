#pragma once

#include <cstdint>

namespace lynx::moe {

// How a model family scores its experts and weighs the chosen ones. Shared experts are not part of
// it: they are always on.
struct Gate {
  enum class Score : uint8_t {
    kSoftmax,  // p = softmax(z) over all experts; ranks as z does.
    kSigmoid,  // p[e] = sigmoid(z[e]); ranks as p + bias.
  };
  enum class Rule : uint8_t {
    kRenormalise,  // Weights are p over the chosen, scaled to sum to 1. Softmax before or after
                   // top-k is the same thing then.
    kKeepMass,     // Weights are p over the chosen, scaled to sum to what p of the row's own top-k
                   // sums to: p itself, when the row keeps its own.
  };
  // How a group of experts is judged where a row may use some groups only.
  enum class GroupScore : uint8_t { kMax, kTopTwoSum };

  Score score = Score::kSoftmax;
  Rule rule = Rule::kRenormalise;
  float scale = 1;  // Multiplies every weight, after the rule (routed_scaling_factor).
  // Experts stand in `groups` equal groups of neighbours; a row uses its `groups_kept` best.
  int32_t groups = 1;
  int32_t groups_kept = 1;
  GroupScore group_score = GroupScore::kMax;
  // The weight multiplies the expert's input instead of its output (Llama-4): what a stand-in
  // computes is then not what the router weighed.
  bool scales_input = false;
};

}  // namespace lynx::moe
