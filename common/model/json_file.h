#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"

namespace lynx::model {

// Parses `text` after checking its shape (common/base/json_shape.h). A key that occurs twice in an
// object is an error: a reader that keeps either would be guessing. `name` is for messages.
//   InvalidArgument  with `name` and the place.
absl::StatusOr<nlohmann::json> ParseJson(std::string_view text, std::string_view name);

// Reads and parses a file of at most `max_bytes`.
//   NotFound         no such file.
//   InvalidArgument  not a readable file, too large, or as ParseJson.
absl::StatusOr<nlohmann::json> ReadJsonFile(const std::filesystem::path& path, int64_t max_bytes);

}  // namespace lynx::model
