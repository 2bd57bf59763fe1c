#pragma once

#include <cstddef>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace lynx::loadtest {

// The JSON object on one line of a file. InvalidArgument names file, line and column.
absl::StatusOr<nlohmann::json> ParseJsonLine(std::string_view line, const std::string& file,
                                             size_t number);

// Column (from 1) of the member `name` in the text of an object, or of its start.
size_t ColumnOfMember(std::string_view line, std::string_view name);

}  // namespace lynx::loadtest
