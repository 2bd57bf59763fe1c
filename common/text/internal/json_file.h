#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

// Bounded, checked reading of the JSON files of a model folder. No exception of the JSON library
// leaves these functions.
namespace lynx::text::internal {

using Json = nlohmann::json;

// The whole file.
//
//   NotFound            there is nothing of that name.
//   FailedPrecondition  there is, but it cannot be read: no permission, a link to nothing, a folder,
//                       a FIFO. Whatever the caller takes for optional, it was meant to be read.
//   InvalidArgument     it is above `max_bytes`.
//   DataLoss            it got shorter while it was read.
absl::StatusOr<std::string> ReadBoundedFile(const std::filesystem::path& path, int64_t max_bytes);

// Parses a file whose root is an object. Errors name the file and the place.
absl::StatusOr<Json> ReadJsonObject(const std::filesystem::path& path, int64_t max_bytes);

// The same of a text; `place` names it in errors.
absl::StatusOr<Json> ParseJsonObject(std::string_view content, std::string_view place);

// "`place`: `message`", InvalidArgument.
absl::Status BadJson(std::string_view place, std::string_view message);

// Field access with a type check. An absent or null optional field gives the default; `place` is
// the path of `object`, for errors.
absl::StatusOr<std::string> StringField(const Json& object, std::string_view key,
                                        std::string_view place);
absl::StatusOr<bool> BoolField(const Json& object, std::string_view key, bool absent,
                               std::string_view place);
absl::StatusOr<int64_t> IntField(const Json& object, std::string_view key, int64_t absent,
                                 std::string_view place);
// The member, or null when it is absent or JSON null.
const Json* FindField(const Json& object, std::string_view key);

// A token id: an integer in [0, kMaxTokenId].
inline constexpr int64_t kMaxTokenId = (int64_t{1} << 24) - 1;
absl::StatusOr<int32_t> ToTokenId(const Json& value, std::string_view place);

}  // namespace lynx::text::internal
