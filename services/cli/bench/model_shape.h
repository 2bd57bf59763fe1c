#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/model/model_spec.h"
#include "nlohmann/json_fwd.hpp"

namespace lynx::cli {

// The dimensions of a model, for benches that need no weights of it.
struct ModelShape {
  std::string name = {};
  model::ModelSpec spec = {};
  // What to know of the figures, in words.
  std::vector<std::string> notes = {};
};

// The names of the built-in shapes.
std::vector<std::string> ShapeNames();

// `shape` is one of ShapeNames() or the path of a config.json.
//   NotFound         neither.
//   InvalidArgument  a config that is wrong; names file and key.
//   Unimplemented    a family or a feature that is not served; names it.
absl::StatusOr<ModelShape> LoadModelShape(const std::string& shape);

// The same of what --shape says: InvalidArgument, which names the flag, in place of NotFound.
absl::StatusOr<ModelShape> ShapeOfFlag(const std::string& shape);

// The same of a config in memory. `name` is the shape's and is used in messages.
absl::StatusOr<ModelShape> ShapeOfConfig(const nlohmann::json& config, const std::string& name);

// Keeps the first `layers`, in [1, spec.layers].
void KeepLayers(int32_t layers, model::ModelSpec& spec);

// Weights of the whole model; norms are not counted.
int64_t MatrixParameters(const model::ModelSpec& spec);
// Of one layer.
int64_t LayerParameters(const model::ModelSpec& spec, int32_t layer);
int64_t AttentionParameters(const model::ModelSpec& spec);
int64_t ExpertParameters(const model::ModelSpec& spec);
int64_t SharedParameters(const model::ModelSpec& spec);  // With its gate.

}  // namespace lynx::cli
