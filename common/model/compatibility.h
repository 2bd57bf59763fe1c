#pragma once

#include <string>

#include "common/base/dtype.h"
#include "common/model/model_spec.h"
#include "common/model/safetensors.h"

namespace lynx::model {

// The digest that ModelRunner::compatibility_hash() promises: the config as far as it decides a
// result, every tensor's name, type and shape with samples of its bytes, compute and KV type, and
// the shape of a KV block. The same tensors in other shards, or in a config of the other spelling,
// hash alike. Samples, because reading a large model whole would make start-up wait for the disk; a
// fine-tuned copy still differs in every one.
std::string CompatibilityHash(const ModelSpec& spec, const SafetensorsFolder& folder,
                              DType compute_dtype, DType kv_dtype);

}  // namespace lynx::model
