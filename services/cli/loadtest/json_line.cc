#include "services/cli/loadtest/json_line.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/json_shape.h"
#include "services/cli/loadtest/text_position.h"

namespace lynx::loadtest {

absl::StatusOr<nlohmann::json> ParseJsonLine(std::string_view line, const std::string& file,
                                             size_t number) {
  if (const absl::Status shape = CheckJsonShape(line); !shape.ok()) {
    return ErrorAt(file, number, 1, std::string(shape.message()));
  }
  nlohmann::json json;
  try {
    json = nlohmann::json::parse(line);
  } catch (const nlohmann::json::parse_error& error) {
    return ErrorAt(file, number, error.byte == 0 ? 1 : error.byte, "not valid JSON");
  } catch (const nlohmann::json::exception&) {
    return ErrorAt(file, number, 1, "not valid JSON");
  }
  if (!json.is_object()) return ErrorAt(file, number, 1, "wanted a JSON object");
  return json;
}

size_t ColumnOfMember(std::string_view line, std::string_view name) {
  const size_t at = line.find(absl::StrCat("\"", std::string(name), "\""));
  return at == std::string_view::npos ? 1 : at + 1;
}

}  // namespace lynx::loadtest
