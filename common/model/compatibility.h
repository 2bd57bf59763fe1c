#pragma once

#include <string>
#include <string_view>

#include "common/base/dtype.h"
#include "common/model/model_spec.h"
#include "common/model/tensor.h"

namespace lynx::model {

// The identity of a folder's weights: a digest of every tensor's name, type and shape with samples
// of its bytes. The same tensors in other shards are the same weights. Samples, because reading a
// large model whole would make start-up wait for the disk; a fine-tuned copy still differs in every
// one.
std::string WeightsIdentity(const TensorMap& tensors);

// The digest that ModelRunner::compatibility_hash() promises: the config as far as it decides a
// result, the identity of the weights, compute and KV type, and the shape of a KV block. A config
// of the other spelling hashes alike.
std::string CompatibilityHash(const ModelSpec& spec, std::string_view weights_identity,
                              DType compute_dtype, DType kv_dtype);

}  // namespace lynx::model
