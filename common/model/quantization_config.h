#pragma once

#include "absl/status/status.h"
#include "common/model/families/family.h"
#include "common/model/model_config.h"
#include "common/model/model_spec.h"

namespace lynx::model {

// What quantization_config, if `config` has one, says of the weights of a model of `family`. Fails
// as LoadModelSpec does.
absl::Status ReadQuantization(const Family& family, const ModelConfig& config, ModelSpec& spec);

}  // namespace lynx::model
