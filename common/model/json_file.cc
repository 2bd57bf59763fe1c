#include "common/model/json_file.h"

#include <fstream>
#include <set>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/json_shape.h"
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
  std::vector<std::set<std::string>> open;  // Keys of the objects around the current value.
  std::string repeated;
  const json::parser_callback_t watch = [&](int, json::parse_event_t event, json& value) {
    switch (event) {
      case json::parse_event_t::object_start:
        open.emplace_back();
        break;
      case json::parse_event_t::object_end:
        open.pop_back();
        break;
      case json::parse_event_t::key:
        if (!open.back().insert(value.get<std::string>()).second && repeated.empty()) {
          repeated = value.get<std::string>();
        }
        break;
      default:
        break;
    }
    return true;
  };
  json document;
  try {
    document = json::parse(text.begin(), text.end(), watch);
  } catch (const json::exception& error) {
    return absl::InvalidArgumentError(absl::StrCat(prefix, Shortened(error.what())));
  }
  if (!repeated.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(prefix, "key '", Shortened(repeated), "' occurs twice"));
  }
  return document;
}

absl::StatusOr<json> ReadJsonFile(const std::filesystem::path& path, int64_t max_bytes) {
  std::error_code error;
  if (!std::filesystem::exists(path, error)) {
    return absl::NotFoundError(absl::StrCat("no file ", path.string()));
  }
  if (!std::filesystem::is_regular_file(path, error)) {
    return absl::InvalidArgumentError(absl::StrCat(path.string(), " is not a file"));
  }
  std::ifstream in(path, std::ios::binary);
  std::string text;
  std::vector<char> buffer(1 << 16);
  while (in.read(buffer.data(), static_cast<std::streamsize>(buffer.size())), in.gcount() > 0) {
    text.append(buffer.data(), static_cast<size_t>(in.gcount()));
    if (static_cast<int64_t>(text.size()) > max_bytes) {
      return absl::InvalidArgumentError(
          absl::StrCat(path.string(), " is larger than ", max_bytes, " bytes"));
    }
  }
  if (!in.eof()) return absl::InvalidArgumentError(absl::StrCat("cannot read ", path.string()));
  return ParseJson(text, path.string());
}

}  // namespace lynx::model
