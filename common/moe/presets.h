#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "common/moe/policy.h"

namespace lynx::moe {

// What a preset is picked by.
struct ModelFacts {
  std::string_view model_type = {};  // Of the model's config: "qwen3_moe".
  std::string_view name = {};        // As it is called or its folder is; may be empty.
  int32_t experts = 0;               // N; 0 for a dense model.
  int32_t top_k = 0;
  int32_t hidden_size = 0;
  bool scales_input = false;  // Gate::scales_input.
};

// The parameters that `lynx` has for a model unless somebody gives others.
//
// They cannot be computed from N and k: the published ones differ for models alike in both. Models
// without a published pair get alpha 3 and beta ceil(2 + 16 k / N) within [1, 4]. Every preset
// keeps each row's first expert (floor 1), where the published ones keep none.
struct Preset {
  double alpha = 0;
  int32_t beta = 0;  // Or Policy::kUnbounded.
  int32_t floor = 0;
  // Top-1 gates that scale an expert's input: a remapped row loses all that its router chose, so a
  // policy named without parameters is `exact` there.
  bool off_unless_given = false;
  std::string source = {};  // For the start-up log: whose preset, and what an operator should know.
};
Preset PresetFor(const ModelFacts& facts);

// `policy` with what it leaves unset taken from the model's preset: alpha, beta and floor of lynx
// and lynx_compat, k0 of oea (half of k, rounded up). Self-scaled lynx has other units and its own
// pair for all models. `exact` in place of a policy without any parameters where the preset is
// off_unless_given.
Policy WithPreset(const Policy& policy, const ModelFacts& facts);

}  // namespace lynx::moe
