#include "common/text/internal/json_file.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/json_shape.h"
#include "common/base/regular_file.h"
#include "common/base/status_macros.h"
#include "common/base/utf8.h"

namespace lynx::text::internal {
namespace {

// A vocabulary of 10^6 entries with its merges as pairs stays below.
constexpr int64_t kMaxElements = 16'000'000;

}  // namespace

absl::StatusOr<std::string> ReadBoundedFile(const std::filesystem::path& path, int64_t max_bytes) {
  const absl::StatusOr<RegularFile> file = RegularFile::Open(path);
  if (absl::IsInvalidArgument(file.status())) {
    return absl::FailedPreconditionError(file.status().message());
  }
  LYNX_RETURN_IF_ERROR(file.status());
  if (file->size() > max_bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat(path.string(), ": ", file->size(), " bytes, over the limit of ", max_bytes));
  }
  absl::StatusOr<std::string> content = file->ReadAll();
  if (content.ok()) return content;
  return absl::DataLossError(absl::StrCat(path.string(), ": ", content.status().message()));
}

absl::StatusOr<Json> ReadJsonObject(const std::filesystem::path& path, int64_t max_bytes) {
  LYNX_ASSIGN_OR_RETURN(const std::string content, ReadBoundedFile(path, max_bytes));
  return ParseJsonObject(content, path.string());
}

absl::StatusOr<Json> ParseJsonObject(std::string_view content, std::string_view place) {
  if (absl::Status shape = CheckJsonShape(content, kMaxJsonDepth, kMaxElements); !shape.ok()) {
    return BadJson(place, std::string(shape.message()));
  }
  try {
    Json parsed = Json::parse(content);
    if (!parsed.is_object()) return BadJson(place, "the root is not an object");
    return parsed;
  } catch (const Json::exception& e) {
    return BadJson(place, ReplaceInvalidUtf8(e.what()));
  }
}

absl::Status BadJson(std::string_view place, std::string_view message) {
  return absl::InvalidArgumentError(
      absl::StrCat(absl::string_view(place.data(), place.size()), ": ",
                   absl::string_view(message.data(), message.size())));
}

const Json* FindField(const Json& object, std::string_view key) {
  if (!object.is_object()) return nullptr;
  const auto it = object.find(key);
  return it == object.end() || it->is_null() ? nullptr : &*it;
}

absl::StatusOr<std::string> StringField(const Json& object, std::string_view key,
                                        std::string_view place) {
  const Json* field = FindField(object, key);
  if (field == nullptr || !field->is_string()) {
    return BadJson(place, "'" + std::string(key) + "' must be a string");
  }
  return field->get<std::string>();
}

absl::StatusOr<bool> BoolField(const Json& object, std::string_view key, bool absent,
                               std::string_view place) {
  const Json* field = FindField(object, key);
  if (field == nullptr) return absent;
  if (!field->is_boolean()) return BadJson(place, "'" + std::string(key) + "' must be a boolean");
  return field->get<bool>();
}

absl::StatusOr<int64_t> IntField(const Json& object, std::string_view key, int64_t absent,
                                 std::string_view place) {
  const Json* field = FindField(object, key);
  if (field == nullptr) return absent;
  if (!field->is_number_integer()) {
    return BadJson(place, "'" + std::string(key) + "' must be an integer");
  }
  return field->get<int64_t>();
}

absl::StatusOr<int32_t> ToTokenId(const Json& value, std::string_view place) {
  if (!value.is_number_integer()) return BadJson(place, "a token id must be an integer");
  // get<int64_t>() of an unsigned value past int64 turns negative, which is refused below.
  const int64_t id = value.get<int64_t>();
  if (id < 0 || id > kMaxTokenId) {
    return BadJson(place,
                   "token id " + value.dump() + " is outside 0.." + std::to_string(kMaxTokenId));
  }
  return static_cast<int32_t>(id);
}

}  // namespace lynx::text::internal
