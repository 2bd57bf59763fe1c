#include "common/text/model_files.h"

#include <limits>
#include <optional>
#include <set>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/base/json_keys.h"
#include "common/base/status_macros.h"
#include "common/text/internal/json_file.h"

namespace lynx::text {
namespace {

using internal::BadJson;
using internal::FindField;
using internal::Json;

constexpr int64_t kMaxConfigBytes = int64_t{16} << 20;

// An empty object when there is no such file.
absl::StatusOr<Json> ReadOptional(const std::filesystem::path& path) {
  const absl::StatusOr<std::string> content = internal::ReadBoundedFile(path, kMaxConfigBytes);
  if (absl::IsNotFound(content.status())) return Json::object();
  LYNX_RETURN_IF_ERROR(content.status());
  LYNX_ASSIGN_OR_RETURN(Json root, internal::ParseJsonObject(*content, path.string()));
  if (const std::optional<std::string> key = RepeatedJsonKey(*content); key.has_value()) {
    return BadJson(path.string(), "key '" + *key + "' occurs twice");
  }
  return root;
}

absl::Status AddEosIds(const Json& object, const std::string& place, std::set<int32_t>& ids) {
  const Json* field = FindField(object, "eos_token_id");
  if (field == nullptr) return absl::OkStatus();
  const Json list = field->is_array() ? *field : Json::array({*field});
  for (const Json& item : list) {
    LYNX_ASSIGN_OR_RETURN(const int32_t id, internal::ToTokenId(item, place + ": eos_token_id"));
    ids.insert(id);
  }
  return absl::OkStatus();
}

absl::Status ReadNumber(const Json& root, const char* key, double low, double high,
                        const std::string& place, std::optional<double>& out) {
  const Json* field = FindField(root, key);
  if (field == nullptr) return absl::OkStatus();
  const double value = field->is_number() ? field->get<double>() : low - 1;
  if (!(value >= low && value <= high)) {
    return BadJson(place, absl::StrCat("'", key, "' must be a number in ", low, "..", high));
  }
  out = value;
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<int32_t>> LoadStopTokenIds(const std::filesystem::path& model_dir,
                                                      const Tokenizer& tokenizer) {
  std::set<int32_t> ids;
  for (const char* name : {"config.json", "generation_config.json"}) {
    const std::string path = (model_dir / name).string();
    LYNX_ASSIGN_OR_RETURN(const Json root, ReadOptional(path));
    LYNX_RETURN_IF_ERROR(AddEosIds(root, path, ids));
    if (const Json* inner = FindField(root, "text_config"); inner != nullptr) {
      LYNX_RETURN_IF_ERROR(AddEosIds(*inner, path + ": text_config", ids));
    }
  }
  const std::string path = (model_dir / "tokenizer_config.json").string();
  LYNX_ASSIGN_OR_RETURN(const Json root, ReadOptional(path));
  if (const Json* eos = FindField(root, "eos_token"); eos != nullptr) {
    // Either the spelling itself or an object that describes the token.
    const Json* content = eos->is_object() ? FindField(*eos, "content") : eos;
    if (content == nullptr || !content->is_string()) {
      return BadJson(path, "'eos_token' must be a string or hold one");
    }
    const std::optional<int32_t> id = tokenizer.TokenToId(content->get<std::string>());
    if (!id.has_value()) {
      return BadJson(path, "eos_token '" + content->get<std::string>() + "' is no token");
    }
    ids.insert(*id);
  }
  return std::vector<int32_t>(ids.begin(), ids.end());
}

absl::Status CheckVocabulary(const Tokenizer& tokenizer, int32_t vocab_size) {
  const int32_t ids = tokenizer.vocab_size();
  if (ids <= vocab_size) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("tokenizer.json has ids up to ", ids - 1,
                                                 "; vocab_size of config.json is ", vocab_size));
}

absl::StatusOr<GenerationDefaults> LoadGenerationDefaults(const std::filesystem::path& model_dir) {
  const std::string path = (model_dir / "generation_config.json").string();
  LYNX_ASSIGN_OR_RETURN(const Json root, ReadOptional(path));
  GenerationDefaults defaults;
  if (FindField(root, "do_sample") != nullptr) {
    LYNX_ASSIGN_OR_RETURN(defaults.do_sample, internal::BoolField(root, "do_sample", false, path));
  }
  constexpr double kLargest = std::numeric_limits<float>::max();
  LYNX_RETURN_IF_ERROR(ReadNumber(root, "temperature", 0, kLargest, path, defaults.temperature));
  LYNX_RETURN_IF_ERROR(ReadNumber(root, "top_p", 0, 1, path, defaults.top_p));
  LYNX_RETURN_IF_ERROR(ReadNumber(root, "min_p", 0, 1, path, defaults.min_p));
  LYNX_RETURN_IF_ERROR(
      ReadNumber(root, "repetition_penalty", 0, kLargest, path, defaults.repetition_penalty));
  if (FindField(root, "top_k") != nullptr) {
    LYNX_ASSIGN_OR_RETURN(defaults.top_k, internal::IntField(root, "top_k", 0, path));
    if (*defaults.top_k < 0) return BadJson(path, "'top_k' must not be negative");
  }
  return defaults;
}

}  // namespace lynx::text
