#include "common/model/json_file.h"

#include <optional>

#include "absl/strings/str_cat.h"
#include "common/base/json_keys.h"
#include "common/base/json_shape.h"
#include "common/base/regular_file.h"
#include "common/base/status_macros.h"
#include "common/model/name_list.h"

namespace lynx::model {

using nlohmann::json;

absl::StatusOr<json> ParseJson(std::string_view text, std::string_view name) {
  const std::string prefix = absl::StrCat(std::string(name), ": ");
  // The largest header of a published model has about 10^5 tensors of 6 elements.
  if (absl::Status shape = CheckJsonShape(text, kMaxJsonDepth, 10'000'000); !shape.ok()) {
    return absl::InvalidArgumentError(absl::StrCat(prefix, shape.message()));
  }
  // nlohmann/json takes it for the end.
  if (text.find('\0') != std::string_view::npos) {
    return absl::InvalidArgumentError(absl::StrCat(prefix, "has a zero byte"));
  }
  json document;
  try {
    document = json::parse(text.begin(), text.end());
  } catch (const json::exception& error) {
    return absl::InvalidArgumentError(absl::StrCat(prefix, Shortened(error.what())));
  }
  if (const std::optional<std::string> key = RepeatedJsonKey(text); key.has_value()) {
    return absl::InvalidArgumentError(
        absl::StrCat(prefix, "key '", Shortened(*key), "' occurs twice"));
  }
  return document;
}

absl::StatusOr<json> ReadJsonFile(const std::filesystem::path& path, int64_t max_bytes) {
  LYNX_ASSIGN_OR_RETURN(const RegularFile file, RegularFile::Open(path));
  if (file.size() > max_bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat(path.string(), " is larger than ", max_bytes, " bytes"));
  }
  const absl::StatusOr<std::string> text = file.ReadAll();
  if (!text.ok()) return absl::InvalidArgumentError(absl::StrCat("cannot read ", path.string()));
  return ParseJson(*text, path.string());
}

}  // namespace lynx::model
