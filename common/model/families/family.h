#pragma once

#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "common/model/model_config.h"
#include "common/model/model_spec.h"
#include "common/model/model_weights.h"
#include "common/model/weight_binder.h"

namespace lynx::model {

// What is particular to a family of models: how its releases spell config.json and name tensors.
// To add one: a file like those beside this, made of the pieces in shared_config.h and
// shared_weights.h, and a variant in tests/golden/make_golden.py, whose fixture the golden test then
// compares with. docs/models.md names the lists that both go into.
struct Family {
  std::string_view model_type;
  // Fills in what the family adds to the sizes that all families have, which are read already.
  absl::Status (*read)(const ModelConfig& config, ModelSpec& spec);
  // Takes every tensor of the model.
  void (*bind)(const ModelSpec& spec, WeightBinder& binder, ModelWeights& weights);
  double rms_norm_epsilon = 1e-6;  // Where the config has none.
  // The object in config.json that describes the text model, of a model that has other parts, too.
  const char* text_key = nullptr;
  bool has_latents = false;  // Attends to latents instead of heads' keys and values.
  bool has_mxfp4 = false;    // Its experts may be in MXFP4.
};

// Null if it is not served.
const Family* FindFamily(std::string_view model_type);
// For a message.
std::string FamilyNames();

extern const Family kDeepseekV2;
extern const Family kDeepseekV3;
extern const Family kGlm4Moe;
extern const Family kGptOss;
extern const Family kGraniteMoe;
extern const Family kGraniteMoeShared;
extern const Family kLlama;
extern const Family kLlama4;
extern const Family kLlama4Text;
extern const Family kMistral;
extern const Family kMixtral;
extern const Family kOlmoe;
extern const Family kQwen2;
extern const Family kQwen2Moe;
extern const Family kQwen3;
extern const Family kQwen3Moe;

}  // namespace lynx::model
