#include "common/model/quantization_config.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/status_macros.h"
#include "nlohmann/json.hpp"

namespace lynx::model {
namespace {

using nlohmann::json;

// e4m3 with scales of blocks.
absl::Status ReadFp8(const ModelConfig& inner, ModelSpec& spec) {
  // What is served, of keys that say how weights are to be read.
  for (const auto& [key, served] : {std::pair{"fmt", "e4m3"}, {"activation_scheme", "dynamic"}}) {
    LYNX_ASSIGN_OR_RETURN(const std::string value, inner.Text(key, served));
    if (value != served) return inner.Unserved(key, absl::StrCat("served is ", served));
  }
  const json* block = inner.Find("weight_block_size");
  if (block == nullptr) {
    return inner.Unserved("weight_block_size", "weights without scales of blocks are not served");
  }
  const auto is_size = [](const json& size) {
    return size.is_number_integer() && size > 0 && size <= 1 << 20;
  };
  if (!block->is_array() || block->size() != 2 || !is_size((*block)[0]) || !is_size((*block)[1])) {
    return inner.Wrong("weight_block_size", "two sizes, of rows and of columns");
  }
  spec.fp8_block_rows = (*block)[0].get<int32_t>();
  spec.fp8_block_width = (*block)[1].get<int32_t>();
  return absl::OkStatus();
}

// Whether a name of modules, which may leave out its beginning or its end and have "*" or a number
// for the layer, means the experts of a layer.
bool MeansExperts(const std::string& name) {
  const std::vector<std::string> parts = absl::StrSplit(name, '.');
  const std::vector<std::string> path = {"model", "layers", "*", "mlp", "experts"};
  const auto alike = [](const std::string& part, const std::string& wanted) {
    return part == wanted || part == "*" ||
           (wanted == "*" && !part.empty() &&
            part.find_first_not_of("0123456789") == std::string::npos);
  };
  const size_t common = std::min(parts.size(), path.size());
  const auto length = static_cast<std::ptrdiff_t>(common);
  return std::equal(parts.begin(), parts.begin() + length, path.begin(), alike) ||
         std::equal(parts.end() - length, parts.end(), path.end() - length, alike);
}

// Only experts are ever quantised so: what else modules_to_not_convert lists changes nothing.
absl::Status ReadMxfp4(const ModelConfig& inner, ModelSpec& spec) {
  constexpr char kKept[] = "modules_to_not_convert";
  const json* kept = inner.Find(kKept);
  if (kept != nullptr) {
    const auto is_text = [](const json& name) { return name.is_string(); };
    if (!kept->is_array() || !std::all_of(kept->begin(), kept->end(), is_text)) {
      return inner.Wrong(kKept, "a list of names of modules");
    }
    for (const json& name : *kept) {
      if (MeansExperts(name.get<std::string>())) {
        return inner.Unserved(kKept, absl::StrCat("experts are to be in MXFP4, and '",
                                                  name.get<std::string>(), "' takes them out"));
      }
    }
  }
  spec.mxfp4_experts = true;
  return absl::OkStatus();
}

}  // namespace

absl::Status ReadQuantization(const Family& family, const ModelConfig& config, ModelSpec& spec) {
  constexpr char kKey[] = "quantization_config";
  constexpr char kMethod[] = "quant_method";
  const json* object = config.Find(kKey);
  if (object == nullptr) return absl::OkStatus();
  if (!object->is_object()) return config.Wrong(kKey, "an object");
  const ModelConfig inner(*object, absl::StrCat(config.file(), ": ", kKey));
  LYNX_ASSIGN_OR_RETURN(const std::string method, inner.Text(kMethod, "fp8"));
  if (method == "mxfp4" && family.has_mxfp4) {
    LYNX_RETURN_IF_ERROR(ReadMxfp4(inner, spec));
  } else if (method == "fp8") {
    LYNX_RETURN_IF_ERROR(ReadFp8(inner, spec));
  } else {
    return inner.Unserved(kMethod,
                          absl::StrCat("served of ", std::string(family.model_type),
                                       family.has_mxfp4 ? " are fp8 and mxfp4" : " is fp8"));
  }
  spec.notes.push_back(
      "quantization_config: weights are dequantised; activations stay as they are");
  return absl::OkStatus();
}

}  // namespace lynx::model
