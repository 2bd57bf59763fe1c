#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/dtype.h"
#include "common/model/model_spec.h"
#include "common/moe/presets.h"

namespace lynx::cli {

// Sizes of a model, in elements; biases, norms and sinks counted, scales of quantised weights not.
struct ParameterCounts {
  int64_t total = 0;
  // Without the routed experts that a token does not meet. Some publishers leave the embedding out
  // of it, too, of which a token reads one row.
  int64_t active = 0;
  int64_t embedding = 0;
  int64_t expert = 0;  // Of one routed expert; 0 without.
};
ParameterCounts CountParameters(const model::ModelSpec& spec);

// What weight files hold, as their headers say.
struct StoredWeights {
  int64_t tensors = 0;
  int64_t bytes = 0;
  std::map<std::string, int64_t> bytes_of_type;  // By name: "bf16".
};

// Layers whose rows attend to the same.
struct LayerKind {
  std::string name;  // "full", "window of 128", "chunk of 8192", "latent"
  int32_t layers = 0;
  int64_t kv_token_bytes = 0;  // Of one layer, in bf16.
};
std::vector<LayerKind> LayerKindsOf(const model::ModelSpec& spec);

struct ModelInspection {
  std::string name;
  std::vector<std::string> problems;  // What keeps it from being served; each names a file.
  std::vector<std::string> notes;     // What is unusual.
  // Of a sound config.json, as all that follows:
  std::optional<model::ModelSpec> spec;
  ParameterCounts parameters;
  std::optional<StoredWeights> stored;  // Absent without weight files.
  // As a node keeps them: matrices packed, vectors in float32. Of 16-bit weights without files or
  // with problems in them.
  int64_t weight_bytes = 0;
  int64_t expert_bytes = 0;           // Of one routed expert, the largest.
  std::optional<moe::Preset> preset;  // Of a model with experts.
};

// Looks at a Hugging Face folder, or at a config.json or a built-in shape alone, and goes on where
// something is wrong, so that all of it is found at once. Reads headers, small vectors, the
// scales of MXFP4 and the tokenizer, no other weights.
//   NotFound  `model` is none of these.
absl::StatusOr<ModelInspection> InspectModel(const std::string& model);

}  // namespace lynx::cli
